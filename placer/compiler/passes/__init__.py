"""The compiler passes in order. A pass is a function from a graph to a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.structural_ops import OUTPUT
from placer.compiler.passes.evaluate import evaluate
from placer.compiler.passes.exchange.exchange import exchange
from placer.compiler.passes.exchange.local_updates import local_updates
from placer.compiler.passes.exchange.sparse_tables import sparse_tables
from placer.compiler.passes.gradients.differentiate import differentiate
from placer.compiler.passes.gradients.partial_sums import partial_sums
from placer.compiler.passes.gradients.recompute import recompute
from placer.compiler.passes.messages.buckets import buckets
from placer.compiler.passes.messages.insert_conversions import lay_out
from placer.compiler.passes.messages.memcpy import memcpy
from placer.compiler.passes.messages.microbatch import microbatch
from placer.compiler.passes.messages.segment import segment
from placer.compiler.passes.messages.send_and_recv import send_and_recv
from placer.compiler.passes.messages.transfer import transfer
from placer.compiler.passes.placement.place import place
from placer.compiler.passes.placement.slice_parameters import slice_parameters
from placer.compiler.passes.predict import predict
from placer.compiler.passes.train import train
from placer.compiler.passes.verify import GraphForm, verify
from placer.compiler.passes.verify_types import VerifierCache


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass, with the graph forms before and after it.

    Attributes:
        name: the name of the pass.
        run: the function from a graph to a graph.
        needs: the form of the graph before the pass.
        gives: the form of the graph after the pass.
    """

    name: str
    run: Callable[[Graph], Graph]
    needs: GraphForm
    gives: GraphForm


_Form = GraphForm

SHARED_PASSES = (
    Pass("differentiate", differentiate, _Form.WRITTEN, _Form.DIFFERENTIATED),
    Pass("place", place, _Form.DIFFERENTIATED, _Form.PLACED),
    Pass("sparse_tables", sparse_tables, _Form.PLACED, _Form.PLACED),
    Pass("partial_sums", partial_sums, _Form.PLACED, _Form.PLACED),
    Pass("local_updates", local_updates, _Form.PLACED, _Form.PLACED),
    Pass("slice", slice_parameters, _Form.PLACED, _Form.PLACED),
    Pass("exchange", exchange, _Form.PLACED, _Form.PLACED),
)
"""The passes before the graph is split into training step, evaluation and prediction."""

TRAIN = Pass("train", train, _Form.PLACED, _Form.PLACED)
EVALUATE = Pass("evaluate", evaluate, _Form.PLACED, _Form.PLACED)
PREDICT = Pass("predict", predict, _Form.PLACED, _Form.PLACED)

STEP_PASSES = (
    Pass("microbatch", microbatch, _Form.PLACED, _Form.PLACED),
    Pass("layout", lay_out, _Form.PLACED, _Form.LAID_OUT),
    Pass("recompute", recompute, _Form.LAID_OUT, _Form.LAID_OUT),
    Pass("buckets", buckets, _Form.LAID_OUT, _Form.LAID_OUT),
    Pass("transfer", transfer, _Form.LAID_OUT, _Form.TRANSFERRED),
    Pass("memcpy", memcpy, _Form.TRANSFERRED, _Form.COPIED),
    Pass("segment", segment, _Form.COPIED, _Form.COPIED),
    Pass("send_and_recv", send_and_recv, _Form.COPIED, _Form.COPIED),
)
"""The passes that run on each of these graphs."""

PASSES = {
    each.name: each for each in (*SHARED_PASSES, TRAIN, EVALUATE, PREDICT, *STEP_PASSES)
}
"""All passes by name, in execution order."""

PassObserver = Callable[[str, Graph], None]
"""A callback that receives each pass's name and the graph after the pass."""


class LoweredModel(NamedTuple):
    """The graphs of a model after all passes.

    The numbers of edges continue from one graph to the next.

    Attributes:
        step: the training step.
        evaluation: the evaluation, if any.
        prediction: the prediction, if any.
    """

    step: Graph
    evaluation: Graph | None = None
    prediction: Graph | None = None


def lower(graph: Graph, observe: PassObserver | None = None) -> LoweredModel:
    """Run all passes; return the graphs of a step, an evaluation and a prediction.

    The result has an evaluation if the graph has an `evaluation_batch`, and a prediction
    if the graph has `output` ops. Graphs are verified before and after every pass.

    Raises:
        GraphError: the model cannot be lowered.
    """
    cache = VerifierCache()
    verify(graph, GraphForm.WRITTEN, cache)
    graph = _run(SHARED_PASSES, graph, cache, observe)
    step = _run((TRAIN, *STEP_PASSES), graph, cache, observe)
    last, evaluation, prediction = step, None, None
    if graph.evaluation_batch is not None:
        rest = replace(graph, first_edge=last.next_edge)
        last = evaluation = _run((EVALUATE, *STEP_PASSES), rest, cache, observe)
    if graph.of_kind(OUTPUT):
        rest = replace(graph, first_edge=last.next_edge)
        prediction = _run((PREDICT, *STEP_PASSES), rest, cache, observe)
    return LoweredModel(step, evaluation, prediction)


def lower_prediction(graph: Graph) -> LoweredModel:
    """Lower a graph for predictions only: it has `output` ops but no optimizers.

    The step of the result holds the parameters and sparse tables, and computes nothing.
    Raises GraphError if the graph cannot be lowered.
    """
    cache = VerifierCache()
    verify(graph, GraphForm.WRITTEN, cache)
    graph = _run(SHARED_PASSES, graph, cache, None)
    step = _run(STEP_PASSES, graph.with_ops(graph.weights), cache, None)
    prediction = _run((PREDICT, *STEP_PASSES), graph, cache, None)
    return LoweredModel(step, None, prediction)


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
