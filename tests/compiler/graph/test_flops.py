"""Nothing is computed twice, and declared FLOPs are close to what XLA counts."""

import re
from collections import Counter

import numpy as np
import pytest
from support.small_models import load_model, two_layers
from support.sparse_specs import write_sparse_spec

from placer.compiler.driver import compile as compile_model
from placer.compiler.frontend import load
from placer.compiler.frontend.single_process import to_single_process
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.node import program_file
from placer.runtime.process import threads
from placer.system.resources import find_file

W, W0, W1 = "/node:worker/cpu", "/node:worker:0/cpu", "/node:worker:1/cpu"
CLIP = "  clip: {global_norm: 1.0}"
MIXED = two_layers(
    extra="  - {name: m, op: matmul, in: [h, h], transpose_b: true}\n"
    "  - {name: mean, op: reduce_mean, in: m}\n"
    "  - {name: root, op: sqrt, in: loss}\n"
    "  - {name: square, op: mul, in: [h.w, h.w]}\n"
    "  - {name: norm, op: reduce_sum, in: square}\n"
    "  - {name: most, op: add, in: [root, mean]}\n"
    "  - {name: all, op: add, in: [most, norm]}",
).replace("minimize: loss", "minimize: all")
PLACEMENTS = {
    "servers": two_layers(),
    "first layer on worker:0": two_layers(first=W0),
    "second layer on worker:0": two_layers(second=W0),
    "a layer each": two_layers(first=W0, second=W1),
    "a layer each, no servers": two_layers(
        nodes="{worker: {count: 2}}", first=W0, second=W1
    ),
    "adam on the workers": two_layers(
        optimizer="{op: adam, learning_rate: 0.1, place: /node:worker}"
    ),
    "clipped": two_layers(train=CLIP),
    "clipped on one worker": two_layers(
        train=CLIP, optimizer="{op: momentum, learning_rate: 0.1, place: '/node:worker:0'}"
    ),
    "small blocks": two_layers(train=CLIP + "\n  slicing: {min_block: 8}"),
    "fewer workers": two_layers(
        nodes="{worker: {count: 4}, ps: {count: 2}}", first="/node:worker:0-1"
    ),
    "mixed": MIXED,
}  # fmt: skip


def flops(folder, spec):
    """The FLOPs of all programs: of the model, replicated, of the exchange."""
    plan = compile_model(spec, folder)
    return (
        sum(node.flops for node in plan.nodes),
        sum(node.replicated_flops for node in plan.nodes),
        sum(node.exchange_flops for node in plan.nodes),
    )


@pytest.mark.parametrize("nodes", [None, {"worker": 4}, {"worker": 2, "ps": 3}])
@pytest.mark.parametrize("name", ["digits", "diabetes", "seed_ctr"])
def test_the_programs_of_a_spec_add_up_to_one_process(name, nodes, tmp_path):
    file = find_file(f"specs/{name}.yaml")
    single = flops(tmp_path / "single", to_single_process(load(file)))
    split = flops(tmp_path / "split", load(file, nodes=nodes))
    assert split[0] == single[0]
    assert single[1] == 0


def test_a_model_on_two_workers_computes_nothing_twice(tmp_path):
    file = find_file("specs/two_workers.yaml")
    single = flops(tmp_path / "single", to_single_process(load(file)))
    assert flops(tmp_path / "split", load(file)) == (single[0], 0, 0)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_programs_of_any_placement_add_up_to_one_process(placement, tmp_path):
    text = PLACEMENTS[placement]
    single = flops(tmp_path / "single", load_model(text, single_process=True))
    assert flops(tmp_path / "split", load_model(text))[0] == single[0]


def test_replicated_and_exchange_flops_are_counted_separately(tmp_path):
    numel = 16 * 16 + 16 + 16 * 4 + 4
    servers = flops(tmp_path / "servers", load_model(PLACEMENTS["servers"]))
    workers = flops(tmp_path / "workers", load_model(PLACEMENTS["adam on the workers"]))
    assert servers[1:] == (0, numel)  # two workers: one addition per element
    assert workers[1:] == (14 * numel, numel)  # adam's 14, again on worker:1
    clipped = flops(tmp_path / "clipped", load_model(PLACEMENTS["clipped"]))
    assert clipped[2] == numel + 4  # the scale of two sums of squares


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_an_op_has_one_forward_and_one_backward_in_a_program(placement, tmp_path):
    plan = compile_model(load_model(PLACEMENTS[placement]), tmp_path)
    seen = 0
    for node in plan.nodes:
        text = (tmp_path / node.program).read_text()
        step = text.split("\ndef step(")[0]
        residuals = re.findall(r"(\w+_res)(?= = ops\.\w+\.forward\()", step)
        assert len(residuals) == len(set(residuals))
        used = re.findall(r"ops\.\w+\.backward\(\s*(?:s\w*\.)?(\w+_res)", step)
        assert len(used) == len(set(used))
        assert set(used) == set(residuals)
        seen += len(residuals)
        for name in ("h", "out", "loss"):
            calls = re.findall(rf"(?m)^    (?:s\.)?{name}(?:, [\w.]+)? = ops\.", step)
            assert len(calls) <= 1
    assert seen >= 3


@pytest.fixture
def xla_flops(monkeypatch):
    """The FLOPs that XLA counts for the functions that a program calls, by its path."""
    counted = {}
    load_program = program_file.load_program

    def count(path, function):
        def call(*arguments):
            if function not in counted:
                cost = function.lower(*arguments).compile().cost_analysis()
                counted[function] = path, cost.get("flops", 0.0)
            return function(*arguments)

        return call

    def load_and_count(folder, plan, node):
        hooks = load_program(folder, plan, node)
        program = hooks[0].__globals__
        for name, value in [*program.items()]:
            if hasattr(value, "lower") and hasattr(value, "trace"):
                program[name] = count(node.program, value)
        return hooks

    def flops_of(build):
        threads.run_in_threads(build, Options(steps=1))
        flops = Counter()
        for path, count in counted.values():
            flops[path] += count
        return flops

    monkeypatch.setattr(program_file, "load_program", load_and_count)
    return flops_of


WIDE = {
    "servers": two_layers(width=512, batch=64),
    "a layer each": two_layers(width=512, batch=64, first=W0, second=W1),
    "second layer on worker:0": two_layers(width=512, batch=64, second=W0),
    "root": two_layers(
        width=512, batch=64, extra="  - {name: root, op: sqrt, in: loss}"
    ).replace("minimize: loss", "minimize: root"),
}


@pytest.mark.parametrize("placement", WIDE)
def test_declared_flops_are_within_5_percent_of_those_of_xla(
    placement, tmp_path, xla_flops
):
    rows = {"x": np.ones((64, 512), np.float32), "y": np.ones((64, 4), np.float32)}
    np.savez(tmp_path / "rows.npz", **rows)
    build = tmp_path / "build"
    plan = compile_model(load_model(WIDE[placement], tmp_path), build)
    counted = xla_flops(build)
    checked = 0
    for node in plan.nodes:
        if not node.name.startswith("worker"):
            continue
        declared = node.flops + node.replicated_flops
        if declared:
            assert counted[node.program] == pytest.approx(declared, rel=0.05), node.name
            checked += 1
    assert checked


PARTS = """
name: parts
nodes: {worker: {count: 2}, ps: {count: 1}}
inputs: {x: "float32[batch, 4]"}
data: {train: {source: "sklearn:iris", split: train, batch: 8, columns: {x: data}}}
graph:
  - {name: b, op: parameter, shape: [1], init: zeros}
  - {name: h, op: add, in: [x, b], place: "/node:worker"}
  - {name: loss, op: reduce_mean, in: h, place: "/node:worker"}
train: {minimize: loss, optimizer: {op: sgd, learning_rate: 0.1}}
"""


def test_a_sum_that_is_cheaper_in_parts_has_no_negative_flops(tmp_path):
    """The parts of a sum need fewer additions than the whole sum."""
    (tmp_path / "parts.yaml").write_text(PARTS)
    plan = compile_model(tmp_path / "parts.yaml", tmp_path / "build")
    assert all(node.replicated_flops >= 0 for node in plan.nodes)
    assert read_plan(tmp_path / "build") == plan


@pytest.mark.parametrize("update", ["sync", "async"])
@pytest.mark.parametrize("servers", [1, 3])
def test_rows_by_key_are_updated_once_whatever_the_servers(tmp_path, servers, update):
    rule = {
        "op": "sgd",
        "learning_rate": 0.1,
        "update": update,
        "place": "/node:ps/cpu",
    }
    spec = write_sparse_spec(tmp_path, servers=servers, optimizer=rule)
    plan = compile_model(spec, tmp_path / "build")
    alone = compile_model(spec, tmp_path / "alone", single_process=True)
    assert sum(node.flops for node in plan.nodes) == alone.nodes[0].flops
    dense = 2 * 66  # those of the layer, by the second worker's gradients
    repeated = [n.replicated_flops for n in plan.nodes if n.name.startswith("ps")]
    assert sum(repeated) == (dense if update == "async" else 0)


def test_each_table_is_counted_by_its_own_keys(tmp_path):
    """Two tables with rows of one width, whose batches have 2 and 3 keys for each row."""
    rule = {"op": "sgd", "learning_rate": 0.1, "match": "*.table"}
    on_workers = {"op": "sgd", "learning_rate": 0.1, "place": "/node:worker/cpu"}
    spec = write_sparse_spec(
        tmp_path, servers=1, item={"dim": 4}, optimizer=[rule, on_workers]
    )
    plan = compile_model(spec, tmp_path / "build")
    (server,) = (node for node in plan.nodes if node.name == "ps:0")
    assert server.flops == 2 * 4 * (2 + 3) * 24
