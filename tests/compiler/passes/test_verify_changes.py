"""Of a graph that a pass changed, only what it changed is verified: with the same
verdict as if all of the graph was."""

import pytest
from msgspec.structs import replace
from support.small_models import load_model

from placer.compiler.driver import lower_model
from placer.compiler.passes import PASSES
from placer.compiler.passes.verify import verify
from placer.compiler.passes.verify_types import VerifierCache
from placer.errors import GraphError
from placer.place import Place
from placer.place.types import TensorType

TEXT = """\
name: changed
nodes: {worker: {count: 2}, heter: {count: 1, devices: {cpu: 1, gpu: 1}}, ps: {count: 1}}
inputs: {x: "float32[batch, 4]", y: "int32[batch]"}
data: {train: {source: "npz:rows.npz", batch: 8}}
graph:
  - {name: h, op: fc, in: x, size: 3, activation: relu, place: /node:worker}
  - {name: t, op: tanh, in: h, place: /node:worker}
  - {name: d, op: fc, in: t, size: 5, place: "/node:heter/gpu"}
  - {name: p, op: fc, in: d, size: 2, place: /node:worker}
  - {name: loss, op: softmax_cross_entropy, in: [p, y], place: /node:worker}
train:
  minimize: loss
  optimizer: {op: adam, learning_rate: 0.1, place: "/node:ps"}
"""


def mutations(graph):
    """Graphs with one op changed, as a broken pass might."""
    ops = graph.ops
    elsewhere = Place.parse("/node:worker:1/cpu")
    other_type = TensorType("float32", (7,))
    for i, op in enumerate(ops):
        changed = [replace(op, place=elsewhere), None]
        if op.operands:
            last = next(reversed(graph.values))
            changed += [
                op.with_values((last, *op.operands[1:]), op.results),
                op.with_values(op.operands[1:], op.results),
                op.with_values(("unknown", *op.operands[1:]), op.results),
            ]
        if op.results:
            value, *rest = op.results
            changed += [
                op.with_values(op.operands, (replace(value, type=other_type), *rest)),
                op.with_values(op.operands, (replace(value, layout="P"), *rest)),
            ]
        if op.is_computed and not op.is_gradient:
            changed.append(replace(op, kind="sigmoid"))
        if "wrt" in op.attrs:
            changed.append(op.with_attrs(wrt=op.attrs["wrt"][1:]))
        for new in changed:
            yield graph.with_ops([*ops[:i], *([new] if new else []), *ops[i + 1 :]])


def error_of(graph, form, cache=None):
    try:
        verify(graph, form, cache)
    except GraphError as error:
        return error.message
    return None


@pytest.mark.parametrize(
    "name",
    [name for name in PASSES if name not in ("evaluate", "predict")],
)
def test_a_broken_pass_is_found_as_if_all_was_verified(name, monkeypatch):
    monkeypatch.delenv("PLACER_VERIFY")
    graphs = {}
    lower_model(load_model(TEXT), lambda at, graph: graphs.setdefault(at, graph))
    graph, form = graphs[name], PASSES[name].gives
    wrong = 0
    for broken in mutations(graph):
        cache = VerifierCache()
        verify(graph, form, cache)
        found = error_of(broken, form, cache)
        assert (found is None) == (error_of(broken, form) is None), found
        wrong += found is not None
    assert wrong > 50
