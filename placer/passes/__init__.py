"""The passes of the compiler, in order. Each is a function from a graph to a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from placer.graph.graph import Graph
from placer.passes.differentiate import differentiate
from placer.passes.evaluate import evaluate
from placer.passes.layout import lay_out
from placer.passes.memcpy import memcpy
from placer.passes.microbatch import microbatch
from placer.passes.partial_sums import partial_sums
from placer.passes.place import place
from placer.passes.recompute import recompute
from placer.passes.segment import segment
from placer.passes.slice_parameters import slice_parameters
from placer.passes.train import train
from placer.passes.transfer import transfer
from placer.passes.verify import GraphForm, verify
from placer.passes.verify_types import VerifierCache

Pass = Callable[[Graph], Graph]

SHARED_PASSES: tuple[tuple[str, Pass, GraphForm], ...] = (
    ("differentiate", differentiate, GraphForm.DIFFERENTIATED),
    ("place", place, GraphForm.PLACED),
    ("partial_sums", partial_sums, GraphForm.PLACED),
    ("slice", slice_parameters, GraphForm.PLACED),
)
"""The passes before the training step and the evaluation become two graphs: the name,
the pass, and the form of its result."""

STEP_PASSES: tuple[tuple[str, Pass, GraphForm], ...] = (
    ("microbatch", microbatch, GraphForm.PLACED),
    ("layout", lay_out, GraphForm.LAID_OUT),
    ("recompute", recompute, GraphForm.LAID_OUT),
    ("transfer", transfer, GraphForm.TRANSFERRED),
    ("memcpy", memcpy, GraphForm.COPIED),
    ("segment", segment, GraphForm.COPIED),
)
"""The passes that each of the two graphs goes through, after `train` or `evaluate`."""

PASS_NAMES = (
    *(name for name, _, _ in SHARED_PASSES),
    *("train", "evaluate"),
    *(name for name, _, _ in STEP_PASSES),
)
"""The names of all passes, as `--print-after` accepts them."""


def lower(graph: Graph, eval_batch: int | None) -> Iterator[tuple[str, Graph]]:
    """Run all passes, and yield the name and the result of each.

    First come the shared passes, then `train` and the passes of the training step,
    then, if there is an `eval_batch`, `evaluate` and the passes of the evaluation.
    Graphs are verified before and after every pass. Raises GraphError if the model
    cannot be lowered.
    """
    cache = VerifierCache()
    verify(graph, GraphForm.WRITTEN, cache)
    for name, apply, form in SHARED_PASSES:
        graph = apply(graph)
        verify(graph, form, cache)
        yield name, graph
    edges = 0
    phases = [("train", train(graph))]
    if eval_batch:
        phases.append(("evaluate", evaluate(graph, eval_batch)))
    for phase, lowered in phases:
        verify(lowered, GraphForm.PLACED, cache)
        yield phase, lowered
        for name, apply, form in STEP_PASSES:
            # The edges of both graphs are numbered together.
            numbered = partial(transfer, first_edge=edges + 1)
            lowered = numbered(lowered) if apply is transfer else apply(lowered)
            verify(lowered, form, cache)
            yield name, lowered
        edges += len(lowered.of_kind("send"))
