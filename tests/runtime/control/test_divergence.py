"""A minimized loss that is not finite stops the run, whichever node computes it."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

import placer
from placer.errors import PlacerError, RunError
from placer.plan.plan import read_plan
from placer.runtime.control.divergence import DivergedError

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
        "  hint: find the first op with NaN with --debug-nans; try a lower learning rate"
        " or train.clip; or set train.nan: warn to continue such a run",
    ]
    assert [line["step"] for line in lines] == list(range(1, last + 1))
    assert lines[0]["metrics"].keys() == {"other"}  # the loss is watched, not reported
    assert not saved.exists()


@pytest.mark.parametrize("every", ["1", "epoch"])
def test_the_error_in_this_process_ends_with_how_to_continue(build, tmp_path, every):
    saved = tmp_path / "saved"
    with pytest.raises(DivergedError) as error:
        placer.launch(
            build(bad=6), in_process=True, checkpoint=saved, checkpoint_every=every
        )
    end = (
        f"; continue with --checkpoint {saved} --resume {saved / 'step-000001'}"
        if every == "1"
        else f"; this run saved no checkpoint in {saved}; save one every N"
        " steps with 'checkpoint_every' (--checkpoint-every N)"
    )
    assert str(error.value).endswith(end)


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


KEPT = {
    "a file": lambda folder: {"save_params": folder / "kept"},
    "a checkpoint": lambda folder: {"checkpoint": folder / "kept"},
    "the result": lambda folder: {"return_params": True},
    "the result, unasked": lambda folder: {},
}
"""The options of the ways in which a run keeps its parameters."""


@pytest.mark.parametrize("way", KEPT)
def test_parameters_that_are_not_finite_are_not_kept(way, build, tmp_path):
    """The loss of the last step is finite: its update is not."""
    folder = build(rate="1e38", bad=0, value=1e3)
    with pytest.raises(RunError, match=r"after step 1.*|of step 1.*") as error:
        placer.launch(folder, in_process=True, steps=1, **KEPT[way](tmp_path))
    assert re.search(r"'h\.[bw]' is not finite", error.value.message)
    assert not (tmp_path / "kept").is_file()
    assert not [*tmp_path.glob("kept/step-*")]


@pytest.mark.parametrize("way", ["a file", "a checkpoint"])
def test_parameters_that_are_not_finite_are_not_read(way, build, tmp_path):
    """A model that `nan: warn` has kept is read with `nan: warn` only."""
    folder = build(rate="1e38", bad=0, value=1e3, nan="warn")
    placer.launch(folder, in_process=True, steps=1, **KEPT[way](tmp_path))
    kept = tmp_path / "kept"
    spec = tmp_path / "model.yaml"
    spec.write_text(spec.read_text() + "predict: {outputs: [flat]}\n")
    for nan in ("warn", "stop"):
        spec.write_text(spec.read_text().replace("nan: warn", f"nan: {nan}"))
        placer.compile(spec, folder)
        ways = {
            "init": lambda: placer.launch(
                folder, in_process=True, steps=1, init_params=kept
            ),
            "resume": lambda: placer.launch(
                folder, in_process=True, steps=2, resume=kept / "step-000001"
            ),
            "predict": lambda: placer.predict(folder, params=kept, in_process=True),
            "single": lambda: placer.predict(
                folder, params=kept, in_process=True, single_process=True
            ),
            "export": lambda: placer.export(folder, tmp_path / "out", params=kept),
        }
        if way == "a file":
            del ways["resume"]
        for read in ways.values():
            if nan == "warn":
                read()
                continue
            with pytest.raises(PlacerError, match=r"'h\.[wb]' is not finite"):
                read()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


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
