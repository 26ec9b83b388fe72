"""Every spec of `specs/` compiles, trains, and reaches the metrics in its comment.

`.ci/run` trains a few steps of each.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.data_sets import find_data
from support.real_runs import launch, run_command

from placer.system.resources import find_file

SPECS = find_file("specs/digits.yaml").parent
PACKAGES = {
    "equinox_digits": "equinox",
    "flax_block": "flax",
    "flax_block_gpus": "flax",
    "haiku_diabetes": "haiku",
    "keras_digits": "keras",
    "linen_digits": "flax",
    "nnx_cancer": "flax",
}
"""The packages of the specs in Python; digits.py is the model of digits.yaml."""
MODELS = sorted([*(file.stem for file in SPECS.glob("*.yaml")), *PACKAGES])

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
    "digits_optax": {"accuracy": 0.98},
    "digits_half_async": {"accuracy": 0.975},
    "digits_heter": {"accuracy": 0.97},
    "digits_hybrid": {"accuracy": 0.975},
    "digits_threads": {"accuracy": 0.98},
    "digits_geo": {"accuracy": 0.98},
    "equinox_digits": {"accuracy": 0.95},
    "flax_block": {"accuracy": 0.97},
    "flax_block_gpus": {"accuracy": 0.97},
    "haiku_diabetes": {"loss": -0.37},
    "heter_sparse": {"accuracy": 0.9, "loss": -0.33},
    "keras_digits": {"accuracy": 0.96},
    "lamb": {"accuracy": 0.98},
    "linen_digits": {"accuracy": 0.965},
    "lstm": {"accuracy": 0.99},
    "mlp_pipeline": {"accuracy": 0.98},
    "nnx_cancer": {"auc": 0.98},
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


def test_every_spec_says_how_to_run_it_and_what_it_reaches() -> None:
    assert REACHED.keys() == {*MODELS}
    for model in MODELS:
        file, _, function = spec_of(model).name.partition(":")
        text = (SPECS / file).read_text(encoding="utf-8")
        assert text.startswith('"""' if function else "# "), model
        assert f"placer compile specs/{spec_of(model).name} --out build/" in text
        assert "Final evaluation: " in text, model


def spec_of(model: str) -> Path:
    """Return the argument of `placer compile`: a YAML file or FILE.py:FUNCTION."""
    return SPECS / (f"{model}.py:build" if model in PACKAGES else f"{model}.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_processes_reach_the_metrics_of_the_spec(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_data(model, monkeypatch)
    package = PACKAGES.get(model)
    if package and find_spec(package) is None:  # an import of Keras chooses its backend
        pytest.skip(f"{package} is not installed")
    done = run_command("compile", spec_of(model), "--out", tmp_path / "build")
    assert done.status == 0, done.err
    ended = launch(tmp_path / "build")
    assert ended.status == 0, ended.err
    metrics: dict[str, Any] = json.loads(ended.out)["eval"]
    for name, bound in REACHED[model].items():
        value = metrics[name]
        assert value >= bound if bound > 0 else value <= -bound, metrics
