"""Copies between the devices of a node: their number, and their positions."""

from support.small_models import load_model, two_layers

from placer.compiler.driver import lower_model
from placer.compiler.graph.text import parse_graph, print_graph

NODES = "{worker: {count: 2, devices: {cpu: 1, gpu: 8}}}"
AT_CPU = "{op: sgd, learning_rate: 0.1, place: /node:worker/cpu}"
INPUTS = """\
inputs: {x: "float32[batch, 4]", y: "float32[batch, 4]"}
data: {train: {source: "npz:rows.npz", batch: 16}}
"""


def step(text):
    return lower_model(load_model(text))[0]


def copies(graph, node="worker:0"):
    """The kind, the operands and the target devices of every copy on a node."""
    return [
        (op.kind, op.operands, graph.devices(op))
        for op in graph.ops_on(node)
        if op.structure.copies
    ]


def graph_of(*ops, nodes=NODES, optimizer=AT_CPU):
    """The graph of a step of these ops. The last is the loss."""
    lines = "".join(f"  - {{{op}}}\n" for op in ops)
    loss = ops[-1].removeprefix("name: ").partition(",")[0]
    train = f"train: {{minimize: {loss}, optimizer: {optimizer}}}\n"
    return step(f"nodes: {nodes}\n{INPUTS}graph:\n{lines}{train}")


def test_an_optimizer_in_host_memory_needs_one_copy_to_the_devices_and_one_back():
    gpu = "/node:worker/gpu:0"
    found = copies(
        step(two_layers(nodes=NODES, first=gpu, second=gpu, optimizer=AT_CPU))
    )
    (to, operands, device), (back, results, _) = found
    assert (to, back, device) == ("memcpy_h2d", "memcpy_d2h", "gpu:0")
    assert set(operands) == {"x", "y", "h.w", "h.b", "out.w", "out.b"}
    parameters = set(operands) - {"x", "y"}
    assert set(results) == {*(f"{name}.grad" for name in parameters), "loss"}


def test_values_with_rows_come_first_in_a_copy_to_several_devices():
    gpu = "/node:worker/gpu:0-1"
    graph = step(two_layers(nodes=NODES, first=gpu, second=gpu, optimizer=AT_CPU))
    (copy,) = graph.of_kind("memcpy_h2d")
    assert (copy.operands[:2], copy.attrs["rows"]) == (("x", "y"), 2)
    assert graph.devices(copy) == "gpu:0-1"


def test_a_value_is_copied_once_to_each_of_three_devices():
    graph = graph_of(
        "name: h, op: tanh, in: x, place: '/node:worker:0/gpu:0'",
        "name: a, op: fc, in: h, size: 4, place: '/node:worker:0/gpu:1'",
        "name: b, op: fc, in: h, size: 4, place: '/node:worker:0/gpu:2'",
        "name: c, op: mul, in: [h, h], place: '/node:worker:0/gpu:3'",
        "name: d, op: add, in: [h, c], place: '/node:worker:0/gpu:3'",
        "name: s, op: concat, in: [a, b, d], axis: 1, place: '/node:worker:0/gpu:0'",
        "name: loss, op: reduce_sum, in: s",
    )
    of_h = [(kind, to) for kind, names, to in copies(graph) if "h" in names]
    assert of_h == [("memcpy_d2d", f"gpu:{i}") for i in (1, 2, 3)]


def test_copies_between_the_same_devices_at_the_same_level_are_one_op():
    graph = graph_of(
        "name: a, op: fc, in: x, size: 4, place: '/node:worker:0/gpu:0'",
        "name: b, op: tanh, in: a",
        "name: c, op: mul, in: [a, b], place: '/node:worker:0/gpu:1'",
        "name: loss, op: reduce_sum, in: c",
    )
    copied = [names for kind, names, _ in copies(graph) if kind == "memcpy_d2d"]
    assert copied[0] == ("a", "b")
    assert len(copied) == 2


def test_a_value_for_two_other_nodes_leaves_the_device_once():
    graph = graph_of(
        "name: h, op: tanh, in: x, place: '/node:worker:0/gpu:0'",
        "name: a, op: fc, in: h, size: 4, place: '/node:worker:1/gpu:0'",
        "name: b, op: fc, in: h, size: 4, place: '/node:ps/cpu'",
        "name: c, op: reduce_sum, in: a",
        "name: d, op: reduce_sum, in: b",
        "name: loss, op: add, in: [c, d], place: '/node:worker:1/gpu:0'",
        nodes=NODES[:-1] + ", ps: {count: 1}}",
    )
    assert [names for kind, names, _ in copies(graph) if kind == "memcpy_d2h"] == [
        ("h",)
    ]


def test_only_a_copy_of_a_computed_value_starts_a_segment():
    graph = graph_of(
        "name: a, op: fc, in: x, size: 4, place: '/node:worker:0/gpu:0'",
        "name: b, op: fc, in: a, size: 4, place: '/node:worker:0/gpu:1'",
        "name: loss, op: reduce_sum, in: b",
        optimizer="{op: sgd, learning_rate: 0.1}",
    )
    names = ("a", "b", "loss", "b.w.grad", "a.w.grad")
    segments = [graph.producers[name].attrs["segment"] for name in names]
    assert segments == [0, 1, 1, 1, 2]


def test_the_text_of_a_graph_with_copies_round_trips():
    gpu = "/node:worker/gpu:0-1"
    graph = step(two_layers(nodes=NODES, first=gpu, second="/node:worker/cpu"))
    assert parse_graph(print_graph(graph)) == graph


def test_on_one_device_nothing_is_copied():
    assert not copies(
        step(
            two_layers(nodes=NODES, first=None, second=None).replace(
                NODES, "{worker: {count: 2}}"
            )
        )
    )
