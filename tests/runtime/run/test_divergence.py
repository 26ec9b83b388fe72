"""A minimized loss that is not finite stops the run, whichever node computes it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import placer
from placer.build.plan import read_plan
from placer.errors import RunError
from placer.runtime.run.divergence import DivergedError

SPEC = """\
nodes: {{worker: {{count: 2}}, ps: {{count: 1}}}}
inputs: {{x: "float32[batch, 2]", y: "float32[batch]"}}
data:
  train: {{source: "npz:rows.npz", batch: 4}}
  eval: {{source: "npz:rows.npz"}}
graph:
  - place: {first}
    ops: [{{name: h, op: fc, in: x, size: 1}}]
  - place: {second}
    ops:
      - {{name: flat, op: reshape, in: h, shape: [batch]}}
      - {{name: loss, op: mean_squared_error, in: [flat, y]}}
      - {{name: other, op: mean_absolute_error, in: [flat, y]}}
train:
  minimize: loss
  metrics: [{metrics}]
  microbatches: {microbatches}
  nan: {nan}
  optimizer: {{op: sgd, learning_rate: {rate}}}
"""
STEPS = 12
"""The number of steps of an epoch."""


@pytest.fixture
def build(tmp_path):
    def build_spec(
        *,
        first="/node:worker",
        second="/node:worker",
        metrics="other",
        microbatches=1,
        nan="stop",
        rate="0.01",
        bad=None,
        value=np.nan,
    ):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(4 * STEPS, 2)).astype(np.float32)
        y = x.sum(axis=1)
        if bad is not None:
            y[bad] = value
        np.savez(tmp_path / "rows.npz", x=x, y=y)
        text = SPEC.format(
            first=first,
            second=second,
            metrics=metrics,
            microbatches=microbatches,
            nan=nan,
            rate=rate,
        )
        (tmp_path / "model.yaml").write_text(text)
        placer.compile(tmp_path / "model.yaml", tmp_path / "build")
        return tmp_path / "build"

    return build_spec


PLACED = {
    "workers that each have a part of the loss": {},
    "a pipeline, the loss on its second node": {
        "first": "/node:worker:0",
        "second": "/node:worker:1",
        "microbatches": 2,
    },
}


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("placed", PLACED.values(), ids=PLACED)
def test_non_finite_data_stops_all_nodes(build, tmp_path, placed, value):
    folder = build(bad=6, value=float(value), **placed)
    history, saved = tmp_path / "history", tmp_path / "saved.safetensors"
    with pytest.raises(DivergedError) as error:
        placer.launch(folder, in_process=True, history=history, save_params=saved)
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    last = lines[-1]["step"]
    assert str(error.value).splitlines() == [
        f"the loss 'loss' is {value} after step 2; all nodes stopped after step {last},"
        " and no parameters were saved",
        "  hint: --debug-nans names the op that it comes from; a lower learning rate or"
        " train.clip may avoid it; with train.nan: warn the run continues",
    ]
    assert [line["step"] for line in lines] == list(range(1, last + 1))
    assert lines[0]["metrics"].keys() == {"other"}  # the loss is watched, not reported
    assert not saved.exists()


def test_a_loss_that_grows_without_bound_stops_the_run(build):
    with pytest.raises(
        DivergedError, match=r"the loss 'loss' is (inf|nan) after step "
    ):
        placer.launch(build(rate="1e20", metrics="loss"), in_process=True)


def test_with_warn_the_run_continues_with_one_warning(build, capsys):
    result = placer.launch(build(bad=6, nan="warn"), in_process=True)
    assert result.steps == STEPS
    assert capsys.readouterr().err.splitlines() == [
        "warning: the loss 'loss' is nan after step 2; the run continues"
        " because of train.nan: warn"
    ]


def diverging(build, **changes):
    """Build a run whose first loss is finite, and whose update is not."""
    return build(bad=0, value=1e6, rate="3e38", **changes)


KEPT = {
    "a file": {"save_params": "saved.safetensors"},
    "the result": {"return_params": True},
    "a checkpoint": {"checkpoint": "checkpoints", "return_params": False},
    "all": {"save_params": "saved.safetensors", "checkpoint": "checkpoints"},
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_parameters_that_are_not_finite_are_not_kept(build, tmp_path, kept):
    folder = diverging(build)
    paths = {n: tmp_path / v if isinstance(v, str) else v for n, v in kept.items()}
    with pytest.raises(RunError, match=r"'h\.w' is not finite") as error:
        placer.launch(folder, in_process=True, steps=1, **paths)
    message = str(error.value)
    assert ("the parameters could not be saved" in message) == (
        len(kept) == 1 or "save_params" in kept
    )
    assert ("the checkpoint of step 1" in message) == ("checkpoint" in kept)
    assert "the parameters are in" not in message
    assert not (tmp_path / "saved.safetensors").exists()
    assert not [*tmp_path.glob("checkpoints/step-*")]


def test_with_warn_parameters_that_are_not_finite_are_kept(build, tmp_path):
    saved, checkpoints = tmp_path / "saved.safetensors", tmp_path / "checkpoints"
    folder = diverging(build, nan="warn")
    result = placer.launch(
        folder, in_process=True, steps=1, save_params=saved, checkpoint=checkpoints
    )
    assert not np.isfinite(result.params["h.w"]).any()
    assert [*checkpoints.glob("step-*")]


def test_a_run_that_keeps_nothing_does_not_check_its_parameters(build):
    folder = diverging(build)
    result = placer.launch(folder, in_process=True, steps=1, return_params=False)
    assert result.steps == 1


def test_a_metric_that_is_nan_does_not_stop_the_run(build, tmp_path):
    folder = build()
    spec = tmp_path / "model.yaml"
    undefined = "{name: nothing, op: div, in: [zero, zero]}"
    text = spec.read_text().replace("metrics: [other]", "metrics: [nothing]")
    zero = "{name: zero, op: constant, value: 0.0}"
    text = text.replace("train:\n  min", f"  - {zero}\n  - {undefined}\ntrain:\n  min")
    spec.write_text(text)
    placer.compile(spec, folder)
    result = placer.launch(folder, in_process=True)
    assert result.steps == STEPS
    assert np.isnan(result.metrics["nothing"])


def test_the_watched_loss_is_not_evaluated(build):
    folder = build()
    nodes = read_plan(folder).nodes
    of_step = [set(n.step.metrics) for n in nodes if n.step.metrics]
    of_evaluation = [
        set(n.evaluation.metrics)
        for n in nodes
        if n.evaluation and n.evaluation.metrics
    ]
    assert of_step == [{"loss", "other"}] * 2
    assert of_evaluation == [{"other"}] * 2
