"""Copies between the devices of a node: as few as there can be, and where they stand."""

from support.small_models import model, two_layers

from placer.compiler import lowered
from placer.graph.kinds import COPIES
from placer.graph.text import parse_graph, print_graph

NODES = "{worker: {count: 2, devices: {cpu: 1, gpu: 8}}}"
AT_CPU = "{op: sgd, learning_rate: 0.1, place: /node:worker/cpu}"
INPUTS = """\
inputs: {x: "float32[batch, 4]", y: "float32[batch, 4]"}
data: {train: {source: "npz:rows.npz", batch: 16}}
"""


def step(text):
    return lowered(model(text))[0]


def copies(graph, node="worker:0"):
    """Of every copy on a node: its kind, what goes, and to where."""
    return [
        (op.kind, op.operands, graph.devices(op))
        for op in graph.on(node)
        if op.kind in COPIES
    ]


def graph_of(*ops, nodes=NODES, optimizer=AT_CPU):
    """A step of these ops, of which the last is the loss."""
    lines = "".join(f"  - {{{op}}}\n" for op in ops)
    loss = ops[-1].removeprefix("name: ").partition(",")[0]
    train = f"train: {{minimize: {loss}, optimizer: {optimizer}}}\n"
    return step(f"nodes: {nodes}\n{INPUTS}graph:\n{lines}{train}")


def test_an_optimizer_in_memory_takes_one_copy_to_the_devices_and_one_back():
    gpu = "/node:worker/gpu:0"
    found = copies(
        step(two_layers(nodes=NODES, first=gpu, second=gpu, optimizer=AT_CPU))
    )
    (to, taken, device), (back, given, _) = found
    assert (to, back, device) == ("memcpy_h2d", "memcpy_d2h", "gpu:0")
    assert set(taken) == {"x", "y", "h.w", "h.b", "out.w", "out.b"}
    parameters = set(taken) - {"x", "y"}
    assert set(given) == {*(f"{name}.grad" for name in parameters), "loss"}


def test_what_several_devices_share_is_split_by_rows_first():
    gpu = "/node:worker/gpu:0-1"
    graph = step(two_layers(nodes=NODES, first=gpu, second=gpu, optimizer=AT_CPU))
    (copy,) = graph.of_kind("memcpy_h2d")
    assert (copy.operands[:2], copy.attrs["rows"]) == (("x", "y"), 2)
    assert graph.devices(copy) == "gpu:0-1"


def test_a_value_for_three_devices_is_copied_to_each_once():
    graph = graph_of(
        "name: h, op: tanh, in: x, place: '/node:worker:0/gpu:0'",
        "name: a, op: fc, in: h, size: 4, place: '/node:worker:0/gpu:1'",
        "name: b, op: fc, in: h, size: 4, place: '/node:worker:0/gpu:2'",
        "name: c, op: mul, in: [h, h], place: '/node:worker:0/gpu:3'",
        "name: d, op: add, in: [h, c], place: '/node:worker:0/gpu:3'",
        "name: s, op: concat, in: [a, b, d], axis: 1, place: '/node:worker:0/gpu:0'",
        "name: loss, op: reduce_sum, in: s",
    )
    of_h = [(kind, to) for kind, taken, to in copies(graph) if "h" in taken]
    assert of_h == [("memcpy_d2d", f"gpu:{i}") for i in (1, 2, 3)]


def test_values_that_go_the_same_way_at_the_same_level_go_together():
    graph = graph_of(
        "name: a, op: fc, in: x, size: 4, place: '/node:worker:0/gpu:0'",
        "name: b, op: tanh, in: a",
        "name: c, op: mul, in: [a, b], place: '/node:worker:0/gpu:1'",
        "name: loss, op: reduce_sum, in: c",
    )
    over = [taken for kind, taken, to in copies(graph) if kind == "memcpy_d2d"]
    assert over[0] == ("a", "b")
    assert len(over) == 2


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
    assert [taken for kind, taken, _ in copies(graph) if kind == "memcpy_d2h"] == [
        ("h",)
    ]


def test_a_copy_of_what_is_computed_begins_a_segment_and_no_other_does():
    graph = graph_of(
        "name: a, op: fc, in: x, size: 4, place: '/node:worker:0/gpu:0'",
        "name: b, op: fc, in: a, size: 4, place: '/node:worker:0/gpu:1'",
        "name: loss, op: reduce_sum, in: b",
        optimizer="{op: sgd, learning_rate: 0.1}",
    )
    made = ("a", "b", "loss", "b.w.grad", "a.w.grad")
    found = [graph.producers[name].attrs["segment"] for name in made]
    assert found == [0, 1, 1, 1, 2]


def test_a_graph_with_copies_is_read_back_as_it_is_printed():
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
