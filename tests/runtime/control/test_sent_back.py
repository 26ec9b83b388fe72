"""Servers that send the parameters of the next step as they update them."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.small_models import two_layers

import placer
from placer.plan.plan import read_plan
from placer.runtime.control.common_step import Action, CommonStep
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.training_loop.loop import Training

STEPS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sent_back")
    random = np.random.default_rng(5)
    x, y = random.normal(size=(64, 16)), random.normal(size=(64, 4))
    np.savez(folder / "rows.npz", x=x.astype(np.float32), y=y.astype(np.float32))
    return folder


def compile_spec(folder, *, nodes="{worker: {count: 2}, ps: {count: 2}}", train=""):
    text = two_layers(nodes=nodes, train=f"  slicing: {{min_block: 8}}\n{train}")
    (folder / "small.yaml").write_text(text)
    placer.compile(folder / "small.yaml", folder / "build")
    return folder / "build"


def sent_back(build):
    return [edge.id for edge in read_plan(build).step_edges if edge.sent_back]


def run(folder, build, **options):
    saved = folder / "params.safetensors"
    result = placer.launch(build, in_process=True, save_params=saved, **options)
    return result, load_file(saved)


def test_parameters_that_are_updated_as_gradients_arrive_are_sent_back(folder):
    build = compile_spec(folder)
    edges = {edge.id: edge for edge in read_plan(build).step_edges}
    found = sent_back(build)
    assert {edges[number].sources for number in found} == {("ps:0",), ("ps:1",)}
    assert all("worker:0" in edges[number].targets for number in found)


@pytest.mark.parametrize(
    "options",
    [
        {"train": "  clip: {global_norm: 1.0}"},  # the norm comes before the update
        {"nodes": "{worker: {count: 2}}"},  # all-reduce
        {"nodes": "{worker: {count: 1}}"},
    ],
)
def test_other_parameters_are_not(folder, options):
    assert sent_back(compile_spec(folder, **options)) == []


@pytest.mark.parametrize("train", ["", "  bucket_cap_mb: 0.0001"])
@pytest.mark.parametrize("stop_after", [1, 3, STEPS])
def test_nothing_is_left_when_a_run_stops(folder, monkeypatch, stop_after, train):
    """What was sent for the step after the last one is received, and forgotten."""
    build = compile_spec(folder, train=train)
    _, expected = run(folder, build, steps=stop_after)
    discarded, discard, run_step = [], Exchange.discard, Training._run_step

    def request(self, number):
        if number == stop_after and self.execution.is_control:
            self.execution.common_step.request(Action.STOP)
        return run_step(self, number)

    def note(self, key):
        discarded.append((self.node, key.step))
        discard(self, key)

    channels = []
    init = CommonStep.__init__

    def keep(self, plan, channel, **options):
        channels.append(channel)
        init(self, plan, channel, **options)

    monkeypatch.setattr(CommonStep, "__init__", keep)
    monkeypatch.setattr(Training, "_run_step", request)
    monkeypatch.setattr(Exchange, "discard", note)
    result, params = run(folder, build)
    if result.steps == stop_after:
        assert all(np.array_equal(params[name], expected[name]) for name in expected)
    if result.steps == STEPS:
        assert discarded == []
    else:
        last = {("worker:0", result.steps + 1), ("worker:1", result.steps + 1)}
        assert {*discarded} == last
    for channel in channels:
        left = {key for (_, key), queue in channel.mailbox._queues.items() if queue}
        assert not {key for key in left if key.edge > 0}
        assert not channel.mailbox._expected
