"""Heter nodes: seed 001's demo, and blocks that alternate, read off the placed graph and
the programs."""

import pytest
from support.small_models import model

from placer.compiler import compile as compile_model
from placer.graph.kinds import is_computed
from placer.graph.text import parse_graphs

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
    plan = compile_model(model(text), folder)
    (graph,) = parse_graphs((folder / "graph.txt").read_text(), "graph.txt")
    return plan, graph


def test_the_block_is_from_the_first_fc_to_the_gradient_of_the_embedding(tmp_path):
    _, graph = demo(tmp_path)
    mine = graph.on("heter:0")
    computed = [op for op in mine if is_computed(op) and op.kind != "constant"]
    assert computed[0].name == "fc1"
    assert computed[-1].kind == "fc.grad"
    assert computed[-1].name == "embedding.grad"
    assert mine[-1].kind == "send"  # of its parameters' gradients, from where they are
    assert set(mine[-1].operands) == {
        f"{layer}.{name}.grad.d2h"
        for layer in ("fc1", "fc2", "fc3", "predict")
        for name in "wb"
    }


def test_the_workers_fc_is_a_send_and_recv(tmp_path):
    _, graph = demo(tmp_path)
    mine = graph.on("worker:0")
    assert not [op for op in mine if op.kind.startswith("fc")]
    (trigger,) = (op for op in mine if op.kind == "send_and_recv")
    assert trigger.operands == ("embedding",)
    assert str(trigger.attrs["to"]) == "/node:heter/cpu"
    (taken,) = graph.uses[trigger.result.name]
    assert taken.kind == "embedding.grad"
    assert [op.kind for op in mine if not is_computed(op)] == [
        *("read", "listen_and_serv", "send_and_recv", "send")
    ]
    program = (tmp_path / "worker-0/program.py").read_text()
    assert "(d_embedding,) = node.send_and_recv(3, embedding, back=4)" in program


def test_a_server_holds_both_kinds_of_parameters_and_takes_gradients_from_where_they_are(
    tmp_path,
):
    plan, graph = demo(tmp_path)
    (table,) = plan.node("ps:0").tables
    assert len(table.blocks) == 9
    come = {
        str(op.attrs["from"]) for op in graph.on("ps:0") if op.kind == "listen_and_serv"
    }
    assert come == {"/node:worker/cpu", "/node:heter/cpu"}


@pytest.mark.parametrize(("workers", "heter"), [(4, 2), (3, 2), (2, 1), (2, 2), (1, 2)])
def test_a_worker_has_the_heter_node_of_its_number_modulo_theirs(
    workers, heter, tmp_path
):
    plan, _ = demo(tmp_path, workers, heter)
    (entrance,) = (e for e in plan.step_edges if e.values[0].operand == "embedding")
    assert entrance.sources == tuple(f"worker:{w}" for w in range(workers))
    label = {
        node.name: read.own
        for node in plan.nodes
        for read in node.step.reads
        if read.input == "label"
    }
    if heter == 1:
        assert label == {"heter:0": (0,)}  # all of them
        return
    assert label == {
        f"heter:{h}": tuple(w for w in range(workers) if w % heter == h)
        for h in range(heter)
    }


def test_blocks_that_alternate_are_one_send_and_recv_each_there_and_back(tmp_path):
    """Five blocks, as PaddlePaddle's own test has them: cpu, gpu, cpu, gpu, cpu."""
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
    compile_model(model(text), tmp_path)
    (graph,) = parse_graphs((tmp_path / "graph.txt").read_text(), "graph.txt")
    for worker in ("worker:0", "worker:1"):
        found = [op for op in graph.on(worker) if op.kind == "send_and_recv"]
        assert [(op.operands, op.result.name.split(".")[0]) for op in found] == [
            (("b0",), "b1"),
            (("b2",), "b3"),
            (("b3.grad",), "b2"),
            (("b1.grad",), "b0"),
        ]
    assert not [op for op in graph.of_kind("send") if op.attrs["to"].node == "heter"
                and op.place.node == "worker"]  # fmt: skip


def graph_of(ops, folder, **train):
    """The graphs of these ops: of a step, and of an evaluation."""
    lines = "".join(f"  - {{{op}}}\n" for op in ops)
    recipe = "".join(f"  {key}: {value}\n" for key, value in train.items())
    text = f"""\
nodes: {{worker: {{count: 1}}, heter: {{count: 1}}, ps: {{}}}}
inputs: {{x: "float32[batch, 8]"}}
data:
  train: {{source: "npz:rows.npz", batch: 8}}
  eval: {{source: "npz:rows.npz"}}
graph:
{lines}train:
  minimize: loss
{recipe}  optimizer: {{op: sgd, learning_rate: 0.1, place: /node:worker}}
"""
    compile_model(model(text), folder)
    return parse_graphs((folder / "graph.txt").read_text(), "graph.txt")


def between_workers_and_heter(graph):
    """The kinds of what worker:0 does with the heter node, in order, and what it computes
    in between."""
    found = []
    for op in graph.on("worker:0"):
        other = op.attrs.get("to", op.attrs.get("from"))
        if is_computed(op):
            found.append("computes")
        elif other is not None and other.node == "heter":
            found.append(op.kind)
    return [kind for i, kind in enumerate(found) if kind not in found[i - 1 : i]]


def test_what_a_worker_computes_meanwhile_is_not_held_up(tmp_path):
    """The heter node waits for a server, whose message the worker has work with."""
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
"""What the worker sends depends on no row, and what comes back does."""


def test_what_is_sent_once_and_answered_for_each_batch_stays_two_ops(tmp_path):
    step, evaluation = graph_of(ONCE, tmp_path)
    assert between_workers_and_heter(step)[1] == "send_and_recv"
    found = between_workers_and_heter(evaluation)
    assert found[:3] == ["computes", "send", "listen_and_serv"]


def test_what_is_sent_once_and_answered_for_each_microbatch_stays_two_ops(tmp_path):
    step, _ = graph_of(ONCE, tmp_path, microbatches=2)
    found = between_workers_and_heter(step)
    assert found[:3] == ["computes", "send", "listen_and_serv"]
