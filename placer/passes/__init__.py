"""The compiler's passes, in order. Each is one function from a graph to a graph."""

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
from placer.passes.verify import Stage, verify
from placer.passes.verify_types import Known

Pass = Callable[[Graph], Graph]

SHARED: tuple[tuple[str, Pass, Stage], ...] = (
    ("differentiate", differentiate, Stage.DIFFERENTIATED),
    ("place", place, Stage.PLACED),
    ("partial_sums", partial_sums, Stage.PLACED),
    ("slice", slice_parameters, Stage.PLACED),
)
"""What a training step and its evaluation share: name, pass, what holds afterwards."""

STEP: tuple[tuple[str, Pass, Stage], ...] = (
    ("microbatch", microbatch, Stage.PLACED),
    ("layout", lay_out, Stage.LAID_OUT),
    ("recompute", recompute, Stage.LAID_OUT),
    ("transfer", transfer, Stage.TRANSFERRED),
    ("memcpy", memcpy, Stage.COPIED),
    ("segment", segment, Stage.COPIED),
)
"""What each of the two goes through, after `train` or `evaluate`."""

NAMES = (
    *(name for name, _, _ in SHARED),
    *("train", "evaluate"),
    *(name for name, _, _ in STEP),
)
"""What `--print-after` takes."""


def lower(graph: Graph, eval_batch: int | None) -> Iterator[tuple[str, Graph]]:
    """Run all passes; yield each one's name and graph: first what the training step and
    the evaluation share, then the step's from `train` on, then the evaluation's from
    `evaluate` on.

    The graph is verified before and after every pass.
    """
    known = Known()
    verify(graph, Stage.WRITTEN, known)
    for name, apply, stage in SHARED:
        graph = apply(graph)
        verify(graph, stage, known)
        yield name, graph
    edges = 0
    phases = [("train", train(graph))]
    if eval_batch:
        phases.append(("evaluate", evaluate(graph, eval_batch)))
    for phase, found in phases:
        verify(found, Stage.PLACED, known)
        yield phase, found
        for name, apply, stage in STEP:
            numbered = partial(transfer, first_edge=edges + 1)
            found = numbered(found) if apply is transfer else apply(found)
            verify(found, stage, known)
            yield name, found
        edges += len(found.of_kind("send"))
