"""Graphs, plans and programs of well-known examples: two workers, and a parameter
server."""

from math import prod

import pytest
from support.small_models import load_model, two_layers

from placer.compiler.driver import compile as compile_model
from placer.compiler.driver import lower_model
from placer.compiler.frontend import load
from placer.compiler.frontend.single_process import to_single_process
from placer.compiler.graph.structural_ops import is_update
from placer.system.resources import find_file


def spec(name, **options):
    return load(find_file(f"specs/{name}.yaml"), **options)


def step_of(name, **options):
    return lower_model(spec(name, **options))[0]


def ops_of(graph, node):
    """The ops of one node, in order."""
    return [op for op in graph.ops if node in graph.nodes(op)]


def test_worker_0_sends_and_worker_1_listens():
    graph = step_of("two_workers")
    forward, backward = graph.of_kind("send")
    assert (forward.operands, graph.nodes(forward)) == (("h1",), ("worker:0",))
    assert str(forward.attrs["to"]) == "/node:worker:1/cpu"
    assert backward.operands == ("h1.grad",)
    assert graph.nodes(backward) == ("worker:1",)
    first, second = graph.of_kind("listen_and_serv")
    assert graph.nodes(first) == ("worker:1",)
    assert str(first.attrs["from"]) == "/node:worker:0/cpu"
    assert first.attrs["edge"] == forward.attrs["edge"]
    assert graph.nodes(second) == ("worker:0",)
    assert second.attrs["edge"] == backward.attrs["edge"]
    (fc,) = (op for op in graph.of_kind("fc") if op.name == "h2")
    assert fc.operands[0] == first.result.name


@pytest.mark.parametrize("nodes", [{}, {"worker": 2, "ps": 2}])
def test_a_worker_has_no_optimizer_and_ends_with_sends(nodes):
    graph = step_of("seed_ctr", nodes=nodes)
    for worker in (h for h in graph.cluster.all_nodes() if h.startswith("worker")):
        ops = ops_of(graph, worker)
        assert not [op for op in ops if is_update(op.kind) or op.kind == "store"]
        kinds = [op.kind for op in ops]
        assert kinds[:2] == ["read", "read"]
        kinds = kinds[2:]
        servers = graph.cluster.kind("ps").count
        assert kinds[-servers:] == ["send"] * servers
        assert kinds.count("send") == servers
        assert kinds[:servers] == ["listen_and_serv"] * servers
        assert kinds.count("listen_and_serv") == servers


def test_sends_replace_the_optimizer():
    single, *_ = lower_model(to_single_process(spec("seed_ctr")))
    updates = [op for op in single.ops if is_update(op.kind)]
    last = max(i for i, op in enumerate(single.ops) if op.is_computed)
    assert all(single.ops.index(op) > last for op in updates)
    split = step_of("seed_ctr")
    sent = [
        name
        for op in ops_of(split, "worker:0")
        if op.kind == "send"
        for name in op.operands
    ]
    assert sent == [op.operands[1] for op in updates]


def test_the_program_of_a_worker_has_no_update_and_ends_with_a_send(tmp_path):
    compile_model(spec("seed_ctr"), tmp_path)
    text = (tmp_path / "worker-0/program.py").read_text()
    assert "update" not in text
    assert "adam" not in text.lower()
    step = text.split("def step(")[1].split("\n\n\ndef evaluate")[0]
    calls = [
        line.strip().split("(")[0].split("= ")[-1]
        for line in step.splitlines()
        if "node." in line.split("(")[0] or "backward(" in line
    ]
    assert [call.removeprefix(") = ") for call in calls if call] == [
        "node.read",
        "node.receive",
        "forward_backward",
        "node.record",
        "node.send",
    ]
    server = (tmp_path / "ps-0/program.py").read_text()
    streamed = "receives the gradients in chunks, then adam, learning rate 0.0001"
    assert (
        f'# {streamed}\n    node.update_from_edges("dense", GRADIENTS_FROM_WORKER)\n'
        in server
    )
    assert "jax" not in server.replace("before jax loads", "")


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("dispatch", ["balanced", "round_robin", "hash", "merged"])
def test_a_server_updates_its_blocks_when_gradients_arrive(dispatch, servers):
    text = find_file("specs/seed_ctr.yaml").read_text().replace(
        "  optimizer:\n", f"  slicing: {{dispatch: {dispatch}}}\n  optimizer:\n"
    )  # fmt: skip
    graph = lower_model(load_model(text, nodes={"ps": servers}))[0]
    stored = 0
    for node in (f"ps:{i}" for i in range(servers)):
        ops = ops_of(graph, node)
        assert not [op for op in ops if op.is_computed]
        parameters = [op for op in ops if op.kind == "parameter"]
        updates = [op for op in ops if is_update(op.kind)]
        assert [op.operands[0] for op in updates] == [op.name for op in parameters]
        received = {
            value.name
            for op in ops
            if op.kind == "listen_and_serv"
            for value in op.results
        }
        assert {op.operands[1] for op in updates} == received
        sent = [name for op in ops if op.kind == "send" for name in op.operands]
        assert sent == [op.name for op in parameters]
        first_update = next(i for i, op in enumerate(ops) if is_update(op.kind))
        last_receive = max(
            i for i, op in enumerate(ops) if op.kind == "listen_and_serv"
        )
        assert last_receive < first_update
        stored += sum(
            graph.tensor_type(op.name).numel()
            for op in parameters
            if not op.name.startswith("embedding")
        )
    assert stored == 788738


def test_the_plan_counts_788738_dense_values(tmp_path):
    plan = compile_model(spec("seed_ctr", nodes={"ps": 2, "worker": 2}), tmp_path)
    fc = [p for p in plan.parameters if not p.name.startswith("embedding")]
    assert sum(prod(p.shape) for p in fc) == 788738
    stored = [
        block.stop - block.start
        for node in plan.nodes
        for table in node.tables
        for block in table.blocks
        if not block.parameter.startswith("embedding")
    ]
    assert sum(stored) == 788738


DECLARED = """\
name: wide
nodes: {worker: {count: 2}, ps: {count: 3}}
inputs: {x: "float32[batch, 10]", y: "float32[batch, 1]"}
data: {train: {source: "npz:rows.npz", batch: 4}}
graph:
  - {name: w1, op: parameter, shape: [10, 1000], init: xavier_uniform}
  - {name: b1, op: parameter, shape: [10, 1000], init: zeros}
  - {name: w2, op: parameter, shape: [1, 10], init: xavier_uniform}
  - {name: b2, op: parameter, shape: [1, 10], init: zeros}
  - {name: sum1, op: add, in: [w1, b1]}
  - {name: sum2, op: add, in: [w2, b2]}
  - {name: h, op: matmul, in: [x, sum1]}
  - {name: t, op: matmul, in: [sum2, sum1]}
  - {name: u, op: mul, in: [h, t]}
  - {name: mean, op: reduce_mean, in: u}
  - {name: target, op: reduce_mean, in: y}
  - {name: loss, op: sub, in: [mean, target]}
train:
  minimize: loss
  epochs: 1
  metrics: [loss]
  optimizer: {op: sgd, learning_rate: 0.1}
"""


def test_w1_and_b1_have_two_blocks_and_w2_and_b2_one():
    graph = lower_model(load_model(DECLARED))[0]
    blocks = {op.name: graph.nodes(op) for op in graph.of_kind("parameter")}
    assert [*blocks] == ["w1.block0", "w1.block1", "b1.block0", "b1.block1", "w2", "b2"]
    sizes = {name: graph.tensor_type(name).numel() for name in blocks}
    assert sizes == {
        "w1.block0": 5000,
        "w1.block1": 5000,
        "b1.block0": 5000,
        "b1.block1": 5000,
        "w2": 10,
        "b2": 10,
    }
    assert blocks["w1.block0"] != blocks["w1.block1"]
    gradients = {op.name: op.attrs["stop"] for op in graph.of_kind("cut")}
    assert gradients == {
        "w1.grad.block0": 5000,
        "w1.grad.block1": 10000,
        "b1.grad.block0": 5000,
        "b1.grad.block1": 10000,
    }


def test_round_robin_continues_from_parameter_to_parameter():
    text = DECLARED.replace(
        "optimizer:", "slicing: {dispatch: round_robin}\n  optimizer:"
    )
    graph = lower_model(load_model(text))[0]
    nodes = [graph.nodes(op)[0] for op in graph.of_kind("parameter")]
    assert nodes == ["ps:0", "ps:1", "ps:2", "ps:0", "ps:1", "ps:2"]


def test_the_program_of_a_server_without_blocks_is_empty(tmp_path):
    small = load_model(two_layers(nodes="{worker: {count: 1}, ps: {count: 6}}"))
    plan = compile_model(small, tmp_path)
    empty = [n for n in plan.nodes if n.name.startswith("ps") and not n.tables]
    assert len(empty) == 2  # four parameters, none large enough to be sliced
    for node in empty:
        text = (tmp_path / node.program).read_text()
        assert '"""Nothing to do: this server stores no parameters."""' in text
