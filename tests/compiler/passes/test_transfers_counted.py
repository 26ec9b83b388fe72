"""Counts of transfers: a value goes once to each node that uses it, and nothing else
moves."""

from collections import Counter

import pytest
from support.small_models import load_model

from placer.compiler.driver import lower_model
from placer.place.layouts.moved_pieces import Conversion

HEAD = """\
nodes: {worker: {count: 4, devices: {cpu: 1, gpu: 3}}, ps: {count: 2}}
inputs: {x: "float32[batch, 8]"}
data: {train: {source: "npz:rows.npz", batch: 16}}
"""


def step(*ops, optimizer="{op: sgd, learning_rate: 0.1}", microbatches=1):
    """The graph of a step of these ops, each at a place. The last is the loss."""
    lines = ""
    for place, op in ops:
        where = f"/node:{place}" if "/" in place else f"/node:{place}/cpu"
        lines += f"  - {{name: {op}, place: '{where}'}}\n"
    loss = ops[-1][1].partition(",")[0]
    train = f"minimize: {loss}, microbatches: {microbatches}, optimizer: {optimizer}"
    return lower_model(load_model(f"{HEAD}graph:\n{lines}train: {{{train}}}\n"))[0]


def transfers(graph):
    """The number of times that each value goes from one node to another in a step."""
    counts = Counter()
    for listen in graph.of_kind("listen_and_serv"):
        send = graph.sends[listen.attrs["edge"]]
        sources, targets = graph.nodes(send), graph.nodes(listen)
        times = graph.microbatches if graph.is_repeated(listen) else 1
        for operand, result in zip(send.operands, listen.results, strict=True):
            layouts = graph.values[operand].layout, result.layout
            conversion = Conversion(
                layouts, sources, targets, graph.batch, graph.cluster.workers
            )
            for target in targets:
                for piece in conversion.pieces_for(target):
                    if piece.source != target:
                        counts[operand, piece.source, target] += times
    return counts


def between_workers(graph):
    """The transfers between workers, as text."""
    return {
        f"{value} {source.removeprefix('worker:')}>{target.removeprefix('worker:')}": n
        for (value, source, target), n in transfers(graph).items()
        if "ps" not in source + target
    }


def with_servers(graph):
    """The number of times that each value goes to or from servers."""
    counts = Counter()
    for (value, source, target), times in transfers(graph).items():
        if "ps" in source + target:
            counts[value] += times
    return counts


DIAMOND = (
    ("worker:0", "h, op: fc, in: x, size: 8"),
    ("worker:1", "left, op: tanh, in: h"),
    ("worker:2", "right, op: sigmoid, in: h"),
    ("worker:3", "both, op: mul, in: [left, right]"),
    ("worker:3", "loss, op: reduce_sum, in: both"),
)


def test_a_diamond_has_one_transfer_per_side_and_direction():
    graph = step(*DIAMOND)
    assert between_workers(graph) == {
        "h 0>1": 1,
        "h 0>2": 1,
        "left 1>3": 1,
        "right 2>3": 1,
        "left.grad 3>1": 1,
        "right.grad 3>2": 1,
        "h.grad.0 1>0": 1,
        "h.grad.1 2>0": 1,
    }
    assert with_servers(graph) == {"h.w": 1, "h.b": 1, "h.w.grad": 1, "h.b.grad": 1}


def test_three_devices_of_a_node_share_one_message_in_each_direction():
    """However many devices use a value, it goes once to their node and its gradient
    once back: the gradients are summed on the first device."""
    graph = step(
        ("worker:0", "h, op: fc, in: x, size: 8"),
        ("worker:1/gpu:0", "a, op: tanh, in: h"),
        ("worker:1/gpu:1", "b, op: sigmoid, in: h"),
        ("worker:1/gpu:2", "c, op: relu, in: h"),
        ("worker:1", "ab, op: add, in: [a, b]"),
        ("worker:1", "abc, op: add, in: [ab, c]"),
        ("worker:1", "loss, op: reduce_sum, in: abc"),
    )
    assert between_workers(graph) == {"h 0>1": 1, "h.grad.part0.d2h 1>0": 1}
    copied = [
        (op.kind, *op.operands, graph.devices(op))
        for op in graph.ops_on("worker:1")
        if op.structure.copies
    ]
    forward = [("memcpy_h2d", "h.copy", f"gpu:{i}") for i in range(3)]
    forward += [("memcpy_d2h", name, "cpu:0") for name in "abc"]
    backward = [
        ("memcpy_h2d", f"{name}.grad", f"gpu:{i}") for i, name in enumerate("abc")
    ]
    backward += [("memcpy_d2d", f"h.grad.{i}", "gpu:0") for i in (1, 2)]
    backward.append(("memcpy_d2h", "h.grad.part0", "cpu:0"))
    assert sorted(copied) == sorted(forward + backward)


def test_gradients_on_another_device_are_summed_there():
    graph = step(
        ("worker:0/gpu:0", "h, op: fc, in: x, size: 8"),
        ("worker:0/gpu:1", "a, op: tanh, in: h"),
        ("worker:0/gpu:1", "b, op: sigmoid, in: h"),
        ("worker:0/gpu:1", "s, op: add, in: [a, b]"),
        ("worker:0/gpu:1", "loss, op: reduce_sum, in: s"),
    )
    copied = [op.operands for op in graph.of_kind("memcpy_d2d")]
    assert copied == [("h",), ("h.grad.part0",)]


def test_a_value_used_twice_on_each_of_two_nodes_goes_once_to_each_and_back():
    graph = step(
        ("worker:0", "h, op: fc, in: x, size: 8"),
        ("worker:1", "a, op: tanh, in: h"),
        ("worker:1", "b, op: relu, in: h"),
        ("worker:1", "ab, op: mul, in: [a, b]"),
        ("worker:1", "left, op: reduce_sum, in: ab"),
        ("worker:2", "c, op: sigmoid, in: h"),
        ("worker:2", "d, op: relu, in: h"),
        ("worker:2", "cd, op: mul, in: [c, d]"),
        ("worker:2", "right, op: reduce_sum, in: cd"),
        ("worker:2", "loss, op: add, in: [left, right]"),
    )
    assert between_workers(graph) == {
        "h 0>1": 1,
        "h 0>2": 1,
        "left 1>2": 1,
        "left.grad 2>1": 1,
        "h.grad.part0 1>0": 1,
        "h.grad.part1 2>0": 1,
    }


@pytest.mark.parametrize("wide", ["split rows", "same nodes"])
def test_gradients_from_several_nodes_are_summed_where_they_are_computed(wide):
    first = "worker:0" if wide == "split rows" else "worker:0-1"
    graph = step(
        (first, "h, op: fc, in: x, size: 8"),
        ("worker:2-3", "a, op: tanh, in: h"),
        ("worker:2-3", "b, op: relu, in: h"),
        ("worker:2-3", "ab, op: mul, in: [a, b]"),
        ("worker:2-3", "loss, op: reduce_sum, in: ab"),
    )
    ways = ["0>2", "0>3"] if wide == "split rows" else ["0>2", "1>3"]
    forth = {f"h {way}": 1 for way in ways}
    back = {f"h.grad.part0 {way[2]}>{way[0]}": 1 for way in ways}
    assert between_workers(graph) == forth | back


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_skip_connection_does_not_go_through_the_stages_between(microbatches):
    graph = step(
        ("worker:0", "h0, op: fc, in: x, size: 8"),
        ("worker:1", "h1, op: fc, in: h0, size: 8"),
        ("worker:2", "h2, op: fc, in: h1, size: 8"),
        ("worker:2", "s, op: add, in: [h0, h2]"),
        ("worker:2", "loss, op: reduce_sum, in: s"),
        microbatches=microbatches,
    )
    values = ["h0 0>1", "h0 0>2", "h1 1>2"]
    gradients = ["h1.grad 2>1", "h0.grad.0 1>0", "h0.grad.1 2>0"]
    assert between_workers(graph) == dict.fromkeys(values + gradients, microbatches)
    assert {*with_servers(graph).values()} == {
        1
    }  # once a step, with any number of microbatches


SHARED = (
    ("worker:0", "h0, op: fc, in: x, size: 8"),
    ("worker:1", "h1, op: fc, in: h0, size: 8, params: {w: h0.w, b: h0.b}"),
    ("worker:1", "h2, op: fc, in: h1, size: 8, params: {w: h0.w, b: h0.b}"),
    ("worker:1", "loss, op: reduce_sum, in: h2"),
)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_shared_parameter_goes_once_a_step_to_the_stage_without_it(
    microbatches,
):
    at = "{op: sgd, learning_rate: 0.1, place: '/node:worker:0/cpu'}"
    graph = step(*SHARED, optimizer=at, microbatches=microbatches)
    total = ".total" if microbatches > 1 else ""
    assert between_workers(graph) == {
        "h0 0>1": microbatches,
        "h0.grad 1>0": microbatches,
        **{f"h0.{name} 0>1": 1 for name in "wb"},
        **{f"h0.{name}.grad{total} 1>0": 1 for name in "wb"},
    }


def test_a_parameter_of_two_stages_on_a_server_goes_once_a_step_to_each():
    graph = step(*SHARED, microbatches=4)
    assert between_workers(graph) == {"h0 0>1": 4, "h0.grad 1>0": 4}
    assert with_servers(graph) == {
        **{f"h0.{name}": 2 for name in "wb"},
        **{f"h0.{name}.grad.total": 2 for name in "wb"},
    }


def test_rows_of_all_microbatches_are_gathered_where_they_are_used():
    """Only the softmax on worker:0 needs all rows."""
    graph = step(
        ("worker:0-1", "h, op: fc, in: x, size: 8"),
        ("worker:0", "s, op: softmax, in: h, axis: 0"),
        ("worker:0", "loss, op: reduce_sum, in: s"),
        optimizer="{op: sgd, learning_rate: 0.1, place: '/node:ps:0/cpu'}",
        microbatches=2,
    )
    assert between_workers(graph) == {"h 1>0": 2, "h.grad 0>1": 1}
