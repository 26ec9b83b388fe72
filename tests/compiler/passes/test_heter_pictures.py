"""Heter nodes: the graphs and the programs of PaddlePaddle's heter demo, and of blocks
that alternate between workers and heter nodes."""

import pytest
from support.small_models import load_model

from placer.compiler.driver import compile as compile_model
from placer.compiler.graph.text import parse_graphs

DEMO = """\
name: heter_demo
nodes: {worker: {count: WORKERS}, heter: {count: HETER, devices: {cpu: 1, gpu: 1}}, ps: {count: 1}}
inputs: {sparse_input: "int32[batch]", label: "int32[batch]"}
data: {train: {source: "npz:rows.npz", batch: 12}}
graph:
  - {name: embedding, op: embedding, in: sparse_input, size: [1000, 128],
     place: /node:worker/cpu}
  - place: /node:heter/gpu
    ops:
      - {name: fc1, op: fc, in: embedding, size: 1024, activation: relu}
      - {name: fc2, op: fc, in: fc1, size: 512, activation: relu}
      - {name: fc3, op: fc, in: fc2, size: 256, activation: relu}
      - {name: predict, op: fc, in: fc3, size: 2}
      - {name: cost, op: softmax_cross_entropy, in: [predict, label]}
train:
  minimize: cost
  optimizer: {op: adam, learning_rate: 1.0e-4}
"""


def demo(folder, workers=1, heter=1):
    text = DEMO.replace("WORKERS", str(workers)).replace("HETER", str(heter))
    plan = compile_model(load_model(text), folder)
    (graph,) = parse_graphs((folder / "graph.txt").read_text(), "graph.txt")
    return plan, graph


def test_the_block_starts_at_the_first_fc_and_ends_at_the_gradient_of_the_embedding(
    tmp_path,
):
    _, graph = demo(tmp_path)
    ops = graph.ops_on("heter:0")
    computed = [op for op in ops if op.is_computed and op.kind != "constant"]
    assert computed[0].name == "fc1"
    assert computed[-1].kind == "fc.grad"
    assert computed[-1].name == "embedding.grad"
    assert ops[-1].kind == "send"  # the gradients of its parameters
    assert set(ops[-1].operands) == {
        f"{layer}.{name}.grad.d2h"
        for layer in ("fc1", "fc2", "fc3", "predict")
        for name in "wb"
    }


def test_the_worker_has_a_send_and_recv_in_place_of_the_fc(tmp_path):
    _, graph = demo(tmp_path)
    ops = graph.ops_on("worker:0")
    assert not [op for op in ops if op.kind.startswith("fc")]
    (request,) = (op for op in ops if op.kind == "send_and_recv")
    assert request.operands == ("embedding",)
    assert str(request.attrs["to"]) == "/node:heter/cpu"
    (user,) = graph.uses[request.result.name]
    assert user.kind == "embedding.grad"
    assert [op.kind for op in ops if not op.is_computed] == [
        *("read", "listen_and_serv", "send_and_recv", "send")
    ]
    program = (tmp_path / "worker-0/program.py").read_text()
    edges = "ACTIVATIONS_TO_HETER, embedding, back=ACTIVATION_GRADIENTS_FROM_HETER"
    assert f"(d_embedding,) = node.send_and_recv(\n        {edges}\n    )" in program


def test_a_server_receives_gradients_from_workers_and_heter_nodes(tmp_path):
    plan, graph = demo(tmp_path)
    (table,) = plan.node("ps:0").tables
    assert len(table.blocks) == 9
    senders = {
        str(op.attrs["from"])
        for op in graph.ops_on("ps:0")
        if op.kind == "listen_and_serv"
    }
    assert senders == {"/node:worker/cpu", "/node:heter/cpu"}


@pytest.mark.parametrize(("workers", "heter"), [(4, 2), (3, 2), (2, 1), (2, 2), (1, 2)])
def test_worker_w_has_heter_node_w_modulo_their_number(workers, heter, tmp_path):
    plan, _ = demo(tmp_path, workers, heter)
    (entrance,) = (e for e in plan.step_edges if e.values[0].operand == "embedding")
    assert entrance.sources == tuple(f"worker:{w}" for w in range(workers))
    label_parts = {
        node.name: read.shard.part_indices
        for node in plan.nodes
        for read in node.step.reads
        if read.input == "label"
    }
    if heter == 1:
        assert label_parts == {"heter:0": (0,)}  # all of them
        return
    assert label_parts == {
        f"heter:{h}": tuple(w for w in range(workers) if w % heter == h)
        for h in range(heter)
    }


def test_each_heter_block_is_one_send_and_recv_forward_and_one_backward(tmp_path):
    """Five blocks, as in PaddlePaddle's test: cpu, gpu, cpu, gpu, cpu."""
    kinds = ["worker/cpu", "heter/gpu", "worker/cpu", "heter/gpu", "worker/cpu"]
    ops = "".join(
        f"  - {{name: b{i}, op: fc, in: {f'b{i - 1}' if i else 'x'}, size: 8,"
        f" place: '/node:{place}'}}\n"
        for i, place in enumerate(kinds)
    )
    text = f"""\
nodes: {{worker: {{count: 2}}, heter: {{count: 1, devices: {{cpu: 1, gpu: 1}}}}, ps: {{}}}}
inputs: {{x: "float32[batch, 8]"}}
data: {{train: {{source: "npz:rows.npz", batch: 8}}}}
graph:
{ops}  - {{name: loss, op: reduce_mean, in: b4, place: /node:worker/cpu}}
train: {{minimize: loss, optimizer: {{op: sgd, learning_rate: 0.1}}}}
"""
    compile_model(load_model(text), tmp_path)
    (graph,) = parse_graphs((tmp_path / "graph.txt").read_text(), "graph.txt")
    for worker in ("worker:0", "worker:1"):
        pairs = [op for op in graph.ops_on(worker) if op.kind == "send_and_recv"]
        assert [(op.operands, op.result.name.split(".")[0]) for op in pairs] == [
            (("b0",), "b1"),
            (("b2",), "b3"),
            (("b3.grad",), "b2"),
            (("b1.grad",), "b0"),
        ]
    assert not [op for op in graph.of_kind("send") if op.attrs["to"].node == "heter"
                and op.place.node == "worker"]  # fmt: skip


def graph_of(ops, folder, **train):
    """The graphs of a step and of an evaluation of these ops."""
    lines = "".join(f"  - {{{op}}}\n" for op in ops)
    settings = "".join(f"  {key}: {value}\n" for key, value in train.items())
    text = f"""\
nodes: {{worker: {{count: 1}}, heter: {{count: 1}}, ps: {{}}}}
inputs: {{x: "float32[batch, 8]"}}
data:
  train: {{source: "npz:rows.npz", batch: 8}}
  eval: {{source: "npz:rows.npz"}}
graph:
{lines}train:
  minimize: loss
{settings}  optimizer: {{op: sgd, learning_rate: 0.1, place: /node:worker}}
"""
    compile_model(load_model(text), folder)
    return parse_graphs((folder / "graph.txt").read_text(), "graph.txt")


def between_workers_and_heter(graph):
    """The kinds of the messages between worker:0 and the heter node, in order, with
    "computes" for computed ops between them."""
    kinds = []
    for op in graph.ops_on("worker:0"):
        other = op.attrs.get("to", op.attrs.get("from"))
        if op.is_computed:
            kinds.append("computes")
        elif other is not None and other.node == "heter":
            kinds.append(op.kind)
    return [kind for i, kind in enumerate(kinds) if kind not in kinds[i - 1 : i]]


def test_a_worker_can_compute_while_the_heter_node_runs(tmp_path):
    """The worker uses a message from a server while the heter node waits for one."""
    step, _ = graph_of(
        [
            "name: a, op: fc, in: x, size: 8, place: /node:worker",
            "name: near, op: tanh, in: a, place: '/node:ps:0'",
            "name: t, op: sigmoid, in: near, place: /node:worker",
            "name: there, op: tanh, in: t, place: '/node:ps:0'",
            "name: far, op: add, in: [a, near], place: /node:heter",
            "name: back, op: mul, in: [far, there], place: /node:worker",
            "name: loss, op: reduce_mean, in: back, place: /node:worker",
        ],
        tmp_path,
    )
    assert between_workers_and_heter(step)[:4] == [
        *("computes", "send", "computes", "listen_and_serv")
    ]


ONCE = [
    "name: w, op: parameter, shape: [8, 3], init: xavier_uniform",
    "name: p, op: tanh, in: w, place: /node:worker",
    "name: h, op: matmul, in: [x, p], place: /node:heter",
    "name: t, op: tanh, in: h, place: /node:worker",
    "name: loss, op: reduce_mean, in: t, place: /node:worker",
]
"""The worker's message depends on no row, and the reply does."""


def test_a_message_once_with_a_reply_for_each_batch_stays_two_ops(tmp_path):
    step, evaluation = graph_of(ONCE, tmp_path)
    assert between_workers_and_heter(step)[1] == "send_and_recv"
    kinds = between_workers_and_heter(evaluation)
    assert kinds[:3] == ["computes", "send", "listen_and_serv"]


def test_a_message_once_with_a_reply_for_each_microbatch_stays_two_ops(tmp_path):
    step, _ = graph_of(ONCE, tmp_path, microbatches=2)
    kinds = between_workers_and_heter(step)
    assert kinds[:3] == ["computes", "send", "listen_and_serv"]
