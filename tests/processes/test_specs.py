"""Every spec of `specs/` compiles, trains, and reaches the metrics in its comment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from support.data_sets import find_data
from support.marks import slow_but
from support.real_runs import launch, run_command

import placer
from placer.compiler import compile
from placer.resources import find_file
from placer.runtime.run.options import Options
from placer.runtime.run.threads import run_in_threads

SPECS = find_file("specs/digits.yaml").parent
PYTHON = ("flax_block", "flax_block_gpus")
"""The specs in Python without a YAML version; digits.py is the model of digits.yaml."""
MODELS = sorted([*(file.stem for file in SPECS.glob("*.yaml")), *PYTHON])

STEPS = 30
IN_EVERY_RUN = ("cnn_gpus", "digits_cnn")
"""Specs that no other fast test trains; `.ci/run` trains a few steps of all specs."""
STEPS_TO_LEARN = {"heter_sparse": 60, "lstm": 160}
"""The steps after which the loss is lower, for specs that need more than `STEPS`."""

REACHED = {
    "adult": {"auc": 0.928},
    "breast_cancer": {"auc": 0.993, "precision": 0.95, "recall": 0.87},
    "cnn_gpus": {"accuracy": 0.985, "loss": -0.045},
    "custom_op": {"accuracy": 0.97},
    "deepfm": {"auc": 0.828},
    "diabetes": {"rmse": -60.0},
    "digits": {"accuracy": 0.98},
    "digits_all_reduce": {"accuracy": 0.98},
    "digits_async": {"accuracy": 0.975},
    "digits_backup": {"accuracy": 0.975},
    "digits_sum_server": {"accuracy": 0.975},
    "digits_without_server": {"accuracy": 0.975},
    "digits_cnn": {"accuracy": 0.985, "loss": -0.03},
    "digits_diloco": {"accuracy": 0.98},
    "digits_half_async": {"accuracy": 0.975},
    "digits_heter": {"accuracy": 0.97},
    "digits_hybrid": {"accuracy": 0.975},
    "digits_threads": {"accuracy": 0.98},
    "digits_geo": {"accuracy": 0.98},
    "flax_block": {"accuracy": 0.97},
    "flax_block_gpus": {"accuracy": 0.97},
    "heter_sparse": {"accuracy": 0.9, "loss": -0.33},
    "lamb": {"accuracy": 0.98},
    "lstm": {"accuracy": 0.99},
    "mlp_pipeline": {"accuracy": 0.98},
    "seed_ctr": {"accuracy": 0.88},
    "transformer": {"loss": -0.47},
    "transformer_pipeline": {"loss": -0.47},
    "two_workers": {"accuracy": 0.9},
    "wide_deep": {"loss": -0.41, "auc": 0.895},
    "wide_deep_sparse": {"auc": 0.8274},
    "word2vec": {"loss": -1.45, "surprise": -3.4},
    "word2vec_sparse": {"loss": -1.45, "surprise": -3.31},
}
"""Bounds of the final evaluation: lower bounds, or upper bounds with a minus sign."""


def test_every_spec_says_how_to_run_it_and_is_in_the_readme() -> None:
    assert REACHED.keys() == {*MODELS}
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for model in MODELS:
        file, _, function = spec_of(model).name.partition(":")
        text = (SPECS / file).read_text(encoding="utf-8")
        assert text.startswith('"""' if function else "# "), model
        assert f"placer compile specs/{spec_of(model).name} --out build/" in text
        assert f"(specs/{file})" in readme


def spec_of(model: str) -> Path:
    """Return the argument of `placer compile`: a YAML file or FILE.py:FUNCTION."""
    return SPECS / (f"{model}.py:build" if model in PYTHON else f"{model}.yaml")


@pytest.mark.parametrize("model", slow_but([*IN_EVERY_RUN][:1], MODELS))
def test_the_loss_of_a_spec_decreases(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_data(model, monkeypatch)
    history = tmp_path / "history.jsonl"
    plan = compile(spec_of(model), tmp_path / "build")
    steps = STEPS_TO_LEARN.get(model, STEPS)
    if plan.emulate:  # this process has too few devices
        placer.launch(tmp_path / "build", steps=steps, history=history)
    else:
        run_in_threads(tmp_path / "build", Options(steps, history))
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert len(lines) == steps
    for line in lines:
        check_metrics(line["metrics"], plan.metrics)
    check_metrics(lines[-1]["eval"], plan.metrics)
    losses = [line["metrics"]["loss"] for line in lines]
    assert sum(losses[-5:]) < 0.99 * sum(losses[:5])


def check_metrics(metrics: Mapping[str, float | None], names: Sequence[str]) -> None:
    """Check the names of metrics, and the range of values that are defined."""
    assert list(metrics) == list(names)
    for name, value in metrics.items():
        if name in ("loss", "rmse", "surprise"):
            assert value is not None
            assert isfinite(value)
            assert value > 0
        else:
            assert value is None or 0 <= value <= 1, name


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_processes_reach_the_metrics_of_the_spec(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_data(model, monkeypatch)
    done = run_command("compile", spec_of(model), "--out", tmp_path / "build")
    assert done.status == 0, done.err
    ended = launch(tmp_path / "build")
    assert ended.status == 0, ended.err
    metrics: dict[str, Any] = json.loads(ended.out)["eval"]
    for name, bound in REACHED[model].items():
        value = metrics[name]
        assert value >= bound if bound > 0 else value <= -bound, metrics
