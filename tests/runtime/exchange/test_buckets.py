"""Gradients that leave in buckets while the backward pass computes the rest."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

import placer
from placer.channel.interface import Channel
from placer.plan.plan import edges_ahead, read_plan
from placer.runtime.exchange.exchange import Exchange

STEPS = 6
SPEC = """\
name: buckets
seed: 1
precision: float64
nodes: {NODES}
inputs: {x: "float64[batch, 16]", y: "float64[batch, 4]"}
data:
  train: {source: "npz:rows.npz", batch: 8}
  eval: {source: "npz:rows.npz", batch: 8}
graph:
  - place: /node:worker/cpu
    ops:
      - {name: h1, op: fc, in: x, size: 24, activation: tanh}
      - {name: h2, op: fc, in: h1, size: 16, activation: tanh}
      - {name: out, op: fc, in: h2, size: 4}
      - {name: loss, op: mean_squared_error, in: [out, y]}
train:
  minimize: loss
  epochs: 2
  eval: {every: 2}
  slicing: {min_block: 8}
  TRAIN
"""
SGD = "optimizer: {op: sgd, learning_rate: 0.1, place: /node:ps/cpu}"
ADAM = "optimizer: {op: adam, learning_rate: 0.01, place: /node:ps/cpu}"
SMALL = "bucket_cap_mb: 0.001"
"""About 130 float64: the weights of each layer are a bucket of their own."""
CASES = {
    "one server": ("worker: {count: 1}, ps: {count: 1}", SGD),
    "two servers": ("worker: {count: 2}, ps: {count: 2}", ADAM),
    "a norm of all gradients": (
        "worker: {count: 2}, ps: {count: 2}",
        f"{SGD}\n  clip: {{global_norm: 0.1}}",
    ),
    "a norm of each gradient": (
        "worker: {count: 2}, ps: {count: 1}",
        f"{SGD}\n  clip: {{norm: 0.1}}",
    ),
    "two phases": (
        "worker: {count: 2}, ps: {count: 2}",
        "optimizer: {op: lamb, learning_rate: 0.01, place: /node:ps/cpu}",
    ),
    "two groups": (
        "worker: {count: 2}, ps: {count: 1}",
        "optimizer:\n    - {op: adam, match: '*.b', learning_rate: 0.01}\n"
        "    - {op: sgd, learning_rate: 0.1}",
    ),
    "recomputed": (
        "worker: {count: 2}, ps: {count: 2}",
        ADAM,
        ("    ops:", "    remat: true\n    ops:"),
    ),
    "a layer on heter nodes": (
        "worker: {count: 2}, heter: {count: 2}, ps: {count: 2}",
        ADAM,
        ("name: h2, op: fc,", "name: h2, op: fc, place: /node:heter/cpu,"),
    ),
    "two threads of one worker": (
        "worker: {count: 1}, ps: {count: 1}",
        f"threads: 2\n  {SGD}",
    ),
    "two threads of each worker": (
        "worker: {count: 2}, ps: {count: 2}",
        f"threads: 2\n  {ADAM}\n  clip: {{global_norm: 0.1}}",
    ),
    "two devices of a node": (
        "worker: {count: 2, devices: {cpu: 1, gpu: 2}}, ps: {count: 1}",
        ADAM,
        ("name: h2, op: fc,", "name: h2, op: fc, place: /node:worker/gpu:1,"),
        ("name: h1, op: fc,", "name: h1, op: fc, place: /node:worker/gpu:0,"),
        ("seed: 1", "seed: 1\nemulate: true"),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("buckets")
    random = np.random.default_rng(5)
    x, y = random.normal(size=(32, 16)), random.normal(size=(32, 4))
    np.savez(folder / "rows.npz", x=x, y=y)
    return folder


def compile_case(folder, case, cap=SMALL, **options):
    nodes, train, *changes = CASES[case]
    text = SPEC.replace("NODES", nodes).replace("TRAIN", f"{train}\n  {cap}")
    for change in changes:
        text = text.replace(*change)
    (folder / "model.yaml").write_text(text)
    return placer.compile(folder / "model.yaml", folder / "build", **options)


def run(folder, **options):
    saved = folder / "params.safetensors"
    result = placer.launch(
        folder / "build", in_process=True, save_params=saved, **options
    )
    return result, load_file(saved)


def bucket_edges(plan):
    return [edge for edge in plan.step_edges if edge.bucket is not None]


@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_one_process(folder, case):
    compile_case(folder, case, single_process=True)
    alone, expected = run(folder, steps=STEPS)
    plan = compile_case(folder, case)
    assert {edge.bucket for edge in bucket_edges(plan)} >= {0, 1, 2}
    result, params = run(folder, steps=STEPS)
    for name, value in expected.items():
        np.testing.assert_allclose(params[name], value, rtol=0, atol=1e-12)
    assert result.eval["loss"] == pytest.approx(alone.eval["loss"], rel=1e-12)


def test_the_last_layers_leave_first_and_come_back_first(folder):
    plan = compile_case(folder, "one server")
    first, second, third = sorted(bucket_edges(plan), key=lambda edge: edge.bucket)
    assert [value.operand for value in first.values] == ["out.w.grad", "out.b.grad"]
    assert {value.operand for value in third.values} == {"h1.w.grad", "h1.b.grad"}
    (back,) = edges_ahead(plan.step_edges, "worker:0")
    sent = [v.operand for edge in (first, second, third) for v in edge.values]
    assert [f"{value.operand}.grad" for value in back.values] == sent
    assert edges_ahead(plan.step_edges, "ps:0") == []


def test_a_worker_needs_memory_for_the_parameters_of_two_steps(folder):
    whole = compile_case(folder, "one server", "bucket_cap_mb: 25")
    assert [edge.bucket for edge in bucket_edges(whole)] == [0]
    plain = compile_case(folder, "one server", "")
    assert edges_ahead(plain.step_edges, "worker:0") == []
    nbytes = 8 * (16 * 24 + 24 + 24 * 16 + 16 + 16 * 4 + 4)
    needed, before = whole.nodes[0], plain.nodes[0]
    assert needed.activation_bytes == before.activation_bytes + nbytes
    assert needed.device_bytes["cpu:0"] == before.device_bytes["cpu:0"] + nbytes


def test_blocks_that_come_ahead_are_joined_without_a_copy(folder, monkeypatch):
    compile_case(folder, "two servers")
    copied, assemble = [], Exchange.assemble

    def note(self, blocks, shape):
        whole = assemble(self, blocks, shape)
        if not np.shares_memory(whole, blocks[0]):
            copied.append(blocks)
        return whole

    monkeypatch.setattr(Exchange, "assemble", note)
    run(folder, steps=STEPS)
    assert copied == []


@pytest.mark.parametrize("steps", [1, STEPS])
def test_only_steps_that_come_are_expected(folder, monkeypatch, steps):
    compile_case(folder, "two servers")
    expected, expect = [], Channel.expect

    def note(self, source, key, out):
        expected.append((self.node, source, key.step))
        expect(self, source, key, out)

    monkeypatch.setattr(Channel, "expect", note)
    run(folder, steps=steps)
    assert sorted(expected) == [
        (f"worker:{i}", f"ps:{j}", step)
        for i in range(2)
        for j in range(2)
        for step in range(2, steps + 1)
    ]


def test_only_a_bucket_with_another_before_it_on_the_same_way_follows(tmp_path):
    """The layers of one group are on two places, so that the buckets of each are counted
    together."""
    text = SPEC.replace(
        "{NODES}", "{worker: {count: 2}, front: {count: 1}, ps: {count: 1}}"
    )
    text = text.replace("size: 4}", "size: 4, place: /node:front}")
    text = text.replace("TRAIN", f"{SMALL}\n  {SGD}")
    (tmp_path / "two_places.yaml").write_text(text)
    placer.compile(tmp_path / "two_places.yaml", tmp_path / "build")
    edges = [
        e for e in read_plan(tmp_path / "build").step_edges if e.bucket is not None
    ]
    by_way = {}
    for edge in sorted(edges, key=lambda edge: edge.bucket):
        by_way.setdefault((edge.sources, edge.targets), []).append(edge.follows)
    assert len(by_way) == 2
    for follows in by_way.values():
        assert follows == [False, *[True] * (len(follows) - 1)]
