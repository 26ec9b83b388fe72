"""The compiler's passes, in order. Each is one function from a graph to a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from placer.graph.graph import Graph
from placer.passes.differentiate import differentiate
from placer.passes.evaluate import evaluate
from placer.passes.lay_out import lay_out
from placer.passes.place import place
from placer.passes.segment import segment
from placer.passes.slice_parameters import slice_parameters
from placer.passes.transfer import transfer
from placer.passes.verify import Stage, verify
from placer.passes.verify_types import Known

Pass = Callable[[Graph], Graph]

SHARED: tuple[tuple[str, Pass, Stage], ...] = (
    ("differentiate", differentiate, Stage.DIFFERENTIATED),
    ("place", place, Stage.PLACED),
    ("slice", slice_parameters, Stage.PLACED),
    ("layout", lay_out, Stage.LAID_OUT),
)
"""What a training step and its evaluation share: name, pass, what holds afterwards."""

STEP: tuple[tuple[str, Pass, Stage], ...] = (
    ("transfer", transfer, Stage.TRANSFERRED),
    ("segment", segment, Stage.TRANSFERRED),
)
"""What the training step alone goes through."""

NAMES = tuple(name for name, _, _ in (*SHARED, *STEP))
"""What `--print-after` takes."""


def lower(graph: Graph, eval_batch: int | None) -> Iterator[tuple[str, Graph]]:
    """Run all passes; yield each one's name and graph, the evaluation's last.

    The graph is verified before and after every pass. The evaluation's graph comes
    under the names `transfer` and `segment`, after the training step's.
    """
    known = Known()
    verify(graph, Stage.WRITTEN, known)
    for name, apply, stage in SHARED:
        graph = apply(graph)
        verify(graph, stage, known)
        yield name, graph
    evaluation = evaluate(graph, eval_batch) if eval_batch else None
    for name, apply, stage in STEP:
        graph = apply(graph)
        verify(graph, stage, known)
        yield name, graph
    if evaluation is None:
        return
    verify(evaluation, Stage.LAID_OUT, known)
    edges = len(graph.of_kind("send"))
    for name, apply, stage in (
        ("transfer", partial(transfer, first_edge=edges + 1), Stage.TRANSFERRED),
        ("segment", segment, Stage.TRANSFERRED),
    ):
        evaluation = apply(evaluation)
        verify(evaluation, stage, known)
        yield name, evaluation
