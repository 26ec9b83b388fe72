"""State of traced functions: statistics of Flax are updated in training, read in evaluation."""

from __future__ import annotations

import importlib.util
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import equinox
import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import placer
from placer.compiler.driver import compile
from placer.exporting.export import export
from placer.ops.functions.paths import leaves_with_paths
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

SOURCE = Path(__file__).parents[1] / "support" / "normalizing.py"
BATCH, STEPS = 8, 20
PLACEMENTS = {
    "one worker": {},
    "two workers, two servers": {"WORKERS": 2, "OPTIMIZER": '"/node:ps/cpu"'},
}
RNG = np.random.default_rng(5)
ROWS = {"x": RNG.normal(size=(24, 4)), "y": RNG.normal(size=24)}


def write(folder: Path, placement: str) -> Path:
    text = SOURCE.read_text(encoding="utf-8")
    changes = "".join(f"{k} = {v}\n" for k, v in PLACEMENTS[placement].items())
    text = text.replace("SEED, BATCH =", f"{changes}SEED, BATCH =")
    folder.mkdir()
    (folder / "model.py").write_text(text)
    np.savez(folder / "rows.npz", **ROWS)
    return folder / "model.py"


@cache
def load_module() -> Any:
    spec = importlib.util.spec_from_file_location("plain_normalizing", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def widened(tree: Any) -> Any:
    def wide(leaf: Any) -> Any:
        is_float = equinox.is_inexact_array(leaf)
        return leaf.astype(np.float64) if is_float else leaf

    return jax.tree.map(wide, tree)


Trained = tuple[list[float], Any, Any]


def train(loss: Any, params: Any, stats: Any) -> Trained:
    """Return the losses, and the final parameters and statistics, by plain JAX."""
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    losses = []
    for number in range(1, STEPS + 1):
        part = slice((number - 1) % 3 * BATCH, (number - 1) % 3 * BATCH + BATCH)
        key = placer.step_key(load_module().SEED, "net", number)
        (error, stats), grads = step(
            params, stats, key, ROWS["x"][part], ROWS["y"][part]
        )
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        losses.append(float(error))
    return losses, params, stats


Expected = tuple[list[float], dict[str, Any], float]


@cache
def plain_nnx() -> Expected:
    """Return the losses, the final values and the evaluation of Flax and plain JAX."""
    module = load_module()
    graph, params, stats, rngs = nnx.split(
        module.normalizing(hidden=6), nnx.Param, nnx.BatchStat, ...
    )

    def loss(params: Any, stats: Any, key: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(graph, params, stats, rngs, copy=True)
        model.drop.rngs = nnx.Rngs(jax.random.fold_in(key, 0)).default
        error = ((module.apply(model, x) - y) ** 2).mean()
        return error, nnx.state(model, nnx.BatchStat)

    losses, params, stats = train(loss, widened(params), widened(stats))
    model = nnx.merge(graph, params, stats, rngs, copy=True)
    values = {
        "net." + "_".join(path): np.asarray(leaf)
        for path, leaf in leaves_with_paths(model)
        if "rngs" not in path
    }
    model.eval()
    error = module.apply(model, ROWS["x"]) - ROWS["y"]
    return losses, values, float((error**2).mean())


@cache
def plain_linen() -> Expected:
    module = load_module()
    variables = widened(module.variables())

    def loss(params: Any, stats: Any, key: Any, x: Any, y: Any) -> Any:
        result, new = module.apply_linen(params, stats, x, key, True)
        return ((result - y) ** 2).mean(), new

    start = variables["params"], variables["batch_stats"]
    losses, params, stats = train(loss, *start)
    values = {
        f"net.{name}_" + "_".join(path): np.asarray(leaf)
        for name, tree in (("params", params), ("stats", stats))
        for path, leaf in leaves_with_paths(tree)
    }
    result, _ = module.apply_linen(params, stats, ROWS["x"], jax.random.key(0), False)
    return losses, values, float(((result - ROWS["y"]) ** 2).mean())


@cache
def plain_equinox() -> Expected:
    module = load_module()
    model, state = widened(module.stateful())
    params, static = equinox.partition(model, equinox.is_inexact_array)

    def loss(params: Any, state: Any, key: Any, x: Any, y: Any) -> Any:
        model = equinox.combine(params, static)
        result, state = module.apply_equinox(model, state, x, key)
        return ((result - y) ** 2).mean(), state

    losses, params, state = train(loss, params, state)
    model = equinox.combine(params, static)
    values = {
        f"net.{name}_" + "_".join(path): np.asarray(leaf)
        for name, tree in (("model", params), ("state", state))
        for path, leaf in leaves_with_paths(tree)
    }
    model = equinox.nn.inference_mode(model)
    result, _ = module.apply_equinox(model, state, ROWS["x"], jax.random.key(0))
    return losses, values, float(((result - ROWS["y"]) ** 2).mean())


MODELS = [
    ("build", plain_nnx),
    ("build_linen", plain_linen),
    ("build_equinox", plain_equinox),
]
SLOW_MODELS = [pytest.param(*each, marks=pytest.mark.slow) for each in MODELS[1:]]


def check(
    expected: Expected, history: Path, saved: Path, outcome: Any, first: int = 0
) -> None:
    losses, values, evaluation = expected
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    got = [line["metrics"]["loss"] for line in lines if "metrics" in line]
    assert got[-len(losses[first:]) :] == pytest.approx(losses[first:], rel=1e-9)
    trained = load_file(saved)
    assert trained.keys() == values.keys()
    for name, value in values.items():
        assert trained[name].dtype == value.dtype
        np.testing.assert_allclose(trained[name], value, rtol=1e-9, atol=1e-9)
    assert outcome.eval == {"loss": pytest.approx(evaluation, rel=1e-9)}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("which", "plain"), MODELS)
def test_statistics_are_those_of_the_library(
    which: str, plain: Any, placement: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "run", placement)
    compile(f"{file}:{which}", tmp_path / "build")
    history, saved = tmp_path / "history.jsonl", tmp_path / "saved.safetensors"
    options = Options(steps=STEPS, history=history, save_params=saved, deadline=300.0)
    check(plain(), history, saved, run_in_threads(tmp_path / "build", options))


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
    history, saved = tmp_path / "history.jsonl", tmp_path / "saved.safetensors"
    options = Options(
        steps=STEPS, resume=saves, history=history, save_params=saved, deadline=300.0
    )
    outcome = run_in_threads(tmp_path / "other", options)
    check(plain(), history, saved, outcome, STEPS // 2)
    shutil.rmtree(saves)


def evaluate_nnx(model: Any) -> Any:
    model.eval()
    return load_module().apply(model, ROWS["x"])


def evaluate_linen(arguments: Any) -> Any:
    trees = arguments["params"], arguments["stats"]
    return load_module().apply_linen(*trees, ROWS["x"], jax.random.key(0), False)[0]


def evaluate_equinox(arguments: Any) -> Any:
    model = equinox.nn.inference_mode(arguments["model"])
    state, key = arguments["state"], jax.random.key(0)
    return load_module().apply_equinox(model, state, ROWS["x"], key)[0]


def made(which: str) -> Any:
    """Return the arguments of a trace that have parameters or state."""
    module = load_module()
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
