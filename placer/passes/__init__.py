"""The passes of the compiler, in order. Each is a function from a graph to a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from placer.passes.send_and_recv import send_and_recv
from placer.passes.slice_parameters import slice_parameters
from placer.passes.train import train
from placer.passes.transfer import transfer
from placer.passes.verify import GraphForm, verify
from placer.passes.verify_types import VerifierCache


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass: its name, its function, and the forms of the graph that it needs and
    gives."""

    name: str
    run: Callable[[Graph], Graph]
    needs: GraphForm
    gives: GraphForm


_Form = GraphForm

SHARED_PASSES = (
    Pass("differentiate", differentiate, _Form.WRITTEN, _Form.DIFFERENTIATED),
    Pass("place", place, _Form.DIFFERENTIATED, _Form.PLACED),
    Pass("partial_sums", partial_sums, _Form.PLACED, _Form.PLACED),
    Pass("slice", slice_parameters, _Form.PLACED, _Form.PLACED),
)
"""The passes before the training step and the evaluation become two graphs."""

TRAIN = Pass("train", train, _Form.PLACED, _Form.PLACED)
EVALUATE = Pass("evaluate", evaluate, _Form.PLACED, _Form.PLACED)

STEP_PASSES = (
    Pass("microbatch", microbatch, _Form.PLACED, _Form.PLACED),
    Pass("layout", lay_out, _Form.PLACED, _Form.LAID_OUT),
    Pass("recompute", recompute, _Form.LAID_OUT, _Form.LAID_OUT),
    Pass("transfer", transfer, _Form.LAID_OUT, _Form.TRANSFERRED),
    Pass("memcpy", memcpy, _Form.TRANSFERRED, _Form.COPIED),
    Pass("segment", segment, _Form.COPIED, _Form.COPIED),
    Pass("send_and_recv", send_and_recv, _Form.COPIED, _Form.COPIED),
)
"""The passes that each of the two graphs goes through."""

PASSES = {each.name: each for each in (*SHARED_PASSES, TRAIN, EVALUATE, *STEP_PASSES)}
"""All passes by name, in order."""

PassObserver = Callable[[str, Graph], None]
"""A function that is called with the name of each pass and the graph after it."""


def lower(
    graph: Graph, observe: PassObserver | None = None
) -> tuple[Graph, Graph | None]:
    """Run all passes; return the graphs of a training step and of an evaluation.

    There is an evaluation if the graph has an `evaluation_batch`. Its edges are numbered
    after those of the step. Graphs are verified before and after every pass. Raises
    GraphError if the model cannot be lowered.
    """
    cache = VerifierCache()
    verify(graph, GraphForm.WRITTEN, cache)
    graph = _run(SHARED_PASSES, graph, cache, observe)
    step = _run((TRAIN, *STEP_PASSES), graph, cache, observe)
    if graph.evaluation_batch is None:
        return step, None
    rest = replace(graph, first_edge=step.next_edge)
    return step, _run((EVALUATE, *STEP_PASSES), rest, cache, observe)


def _run(
    passes: Sequence[Pass],
    graph: Graph,
    cache: VerifierCache,
    observe: PassObserver | None,
) -> Graph:
    for each in passes:
        graph = each.run(graph)
        verify(graph, each.gives, cache)
        if observe:
            observe(each.name, graph)
    return graph
