"""State of traced functions: statistics of Flax are updated in training, read in evaluation."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import equinox
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.imported_files import load_program, write_program
from support.plain.normalizing import (
    RNG,
    ROWS,
    Expected,
    check,
    named,
    options,
    plain_linen,
    plain_nnx,
    train,
    widened,
)

import placer
from placer.compiler.driver import compile
from placer.exporting.export import export
from placer.ops.functions.paths import leaves_with_paths
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

STEPS = 20
PLACEMENTS = {
    "one worker": {},
    "two workers, two servers": {"WORKERS": 2, "OPTIMIZER": "/node:ps/cpu"},
}


def write(folder: Path, placement: str) -> Path:
    return write_program(folder, "normalizing", ROWS, **PLACEMENTS[placement])


@cache
def plain_equinox(steps: int) -> Expected:
    module = load_program("normalizing")
    model, state = widened(module.stateful())
    params, static = equinox.partition(model, equinox.is_inexact_array)

    def loss(params: Any, state: Any, key: Any, x: Any, y: Any) -> Any:
        model = equinox.combine(params, static)
        result, state = module.apply_equinox(model, state, x, key)
        return ((result - y) ** 2).mean(), state

    losses, params, state = train(loss, params, state, steps)
    model = equinox.nn.inference_mode(equinox.combine(params, static))
    result, _ = module.apply_equinox(model, state, ROWS["x"], jax.random.key(0))
    error = float(((result - ROWS["y"]) ** 2).mean())
    return losses, named({"model": params, "state": state}), error


MODELS = [
    ("build", plain_nnx),
    ("build_linen", plain_linen),
    ("build_equinox", plain_equinox),
]
SLOW_MODELS = [pytest.param(*each, marks=pytest.mark.slow) for each in MODELS[1:]]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("which", "plain"), MODELS)
def test_statistics_are_those_of_the_library(
    which: str, plain: Any, placement: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "run", placement)
    compile(f"{file}:{which}", tmp_path / "build")
    outcome = run_in_threads(tmp_path / "build", options(tmp_path, STEPS))
    check(plain(STEPS), tmp_path, outcome, rtol=1e-9)


@pytest.mark.parametrize(("which", "plain"), [MODELS[0], *SLOW_MODELS])
def test_a_run_resumes_with_its_statistics(
    which: str, plain: Any, tmp_path: Path
) -> None:
    file = write(tmp_path / "run", "one worker")
    compile(f"{file}:{which}", tmp_path / "build")
    saves = tmp_path / "checkpoints"
    half = Options(steps=STEPS // 2, checkpoint=saves, deadline=300.0)
    run_in_threads(tmp_path / "build", half)
    other = write(tmp_path / "again", "two workers, two servers")
    compile(f"{other}:{which}", tmp_path / "other")
    given = options(tmp_path, STEPS, resume=saves)
    outcome = run_in_threads(tmp_path / "other", given)
    check(plain(STEPS), tmp_path, outcome, STEPS // 2, rtol=1e-9)
    shutil.rmtree(saves)


def evaluate_nnx(model: Any) -> Any:
    model.eval()
    return load_program("normalizing").apply(model, ROWS["x"])


def evaluate_linen(arguments: Any) -> Any:
    trees = arguments["params"], arguments["stats"]
    return load_program("normalizing").apply_linen(
        *trees, ROWS["x"], jax.random.key(0), False
    )[0]


def evaluate_equinox(arguments: Any) -> Any:
    model = equinox.nn.inference_mode(arguments["model"])
    state, key = arguments["state"], jax.random.key(0)
    return load_program("normalizing").apply_equinox(model, state, ROWS["x"], key)[0]


def made(which: str) -> Any:
    """Return the arguments of a trace that have parameters or state."""
    module = load_program("normalizing")
    if which == "build":
        return module.normalizing(hidden=6)
    if which == "build_linen":
        return {"params": module.params(), "stats": module.statistics()}
    return dict(zip(("model", "state"), module.stateful(), strict=True))


@pytest.mark.parametrize(
    ("which", "evaluate"),
    [
        ("build", evaluate_nnx),
        pytest.param("build_linen", evaluate_linen, marks=pytest.mark.slow),
        pytest.param("build_equinox", evaluate_equinox, marks=pytest.mark.slow),
    ],
)
def test_an_exported_model_reads_its_statistics(
    which: str, evaluate: Any, tmp_path: Path
) -> None:
    file = write(tmp_path / "run", "one worker")
    params = {
        "net." + "_".join(path): abs(RNG.normal(size=leaf.shape))
        if equinox.is_inexact_array(leaf)
        else np.ones_like(leaf)
        for path, leaf in leaves_with_paths(made(which))
        if "rngs" not in path and equinox.is_array(leaf)
    }
    out = tmp_path / "exported"
    export(f"{file}:{which}", out, params=params, outputs=["net"])
    called = (out / "model.py").read_text()
    assert ("ops.in_evaluation(" in called) == (which != "build_linen")
    exported = jax.export.deserialize(bytearray((out / "model.stablehlo").read_bytes()))
    stored = load_file(out / "params.safetensors")  # those that an evaluation reads
    got = exported.call(stored, ROWS["x"])["net"]
    restored = placer.restore(made(which), params, "net")
    np.testing.assert_allclose(got, evaluate(restored), rtol=1e-5)
