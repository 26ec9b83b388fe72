"""Random numbers of traced functions: the mask of a row does not depend on the nodes.

The masks are read from the trained parameters (`support/dropping.py`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from support.imported_files import FOLDER, import_file, write_program
from support.marks import slow_but
from support.row_draws import draw_by_row

import placer
from placer.compiler.driver import compile
from placer.exporting.export import export
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

ROWS, WIDTH, RATE = 13, 64, 0.25
WORKERS = (1, 2, 3)
CASES = [
    (which, workers)
    for which in ("by_streams", "by_key", "by_row_keys", "by_training")
    for workers in WORKERS
]
IN_EVERY_RUN = [("by_streams", 2), ("by_row_keys", 2)]


def write(folder: Path, **settings: Any) -> Path:
    return write_program(folder, "dropping", {"x": np.eye(ROWS)}, **settings)


def run(folder: Path, which: str, steps: int, **settings: Any) -> list[dict[str, Any]]:
    """Return the masks of both layers in each step, from the trained parameters."""
    file = write(folder, **settings)
    values: dict[str, Any] = {name: np.ones((ROWS, WIDTH)) for name in "wv"}
    masks = []
    plan = compile(f"{file}:build_{which}", folder / "build")
    for number in range(1, steps + 1):
        saved = folder / f"{number}.safetensors"
        options = Options(
            steps=number,
            save_params=saved,
            deadline=300.0,
            emulate=plan.settings.emulate,
        )
        run_in_threads(folder / "build", options)
        trained = load_file(saved)
        changes = {n: (values[n] - trained[f"net.{n}"]) * ROWS for n in "wv"}
        masks.append({n: np.round(c * (1 - RATE), 9) for n, c in changes.items()})
        values = {n: trained[f"net.{n}"] for n in "wv"}
    return masks


def expected(file: Path, which: str, step: int) -> dict[str, Any]:
    """Return the masks as plain JAX draws them."""
    module = import_file(file)
    fn, make = module.MODELS[which]
    key, model = placer.step_key(module.SEED, "net", step), make()
    parameters = {name: np.asarray(getattr(model, name)[...]) for name in "wv"}

    def loss(w: Any, v: Any) -> Any:
        model = make()
        if which == "by_streams":
            model.w[...], model.v[...] = w, v
            for i, layer in enumerate((model.first, model.second)):
                layer.rngs = nnx.Rngs(jax.random.fold_in(key, i)).default
            return fn(model, np.eye(ROWS)).sum()
        model = module.Pair(w, v, model.drop)
        more = {"training": True} if which == "by_training" else {}
        return fn(model, np.eye(ROWS), key=key, **more).sum()

    drawn = loss if module.MIXED else draw_by_row(loss, ROWS)
    gradients = jax.grad(drawn, argnums=(0, 1))(*parameters.values())
    return {
        n: np.round(g * (1 - RATE), 9) for n, g in zip("wv", gradients, strict=True)
    }


@pytest.mark.parametrize(("which", "workers"), slow_but(IN_EVERY_RUN, CASES))
def test_a_row_has_its_own_mask_on_any_number_of_workers(
    which: str, workers: int, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for step, masks in enumerate(run(folder, which, 2, WORKERS=workers), 1):
        wanted = expected(folder / "model.py", which, step)
        for name in "wv":
            np.testing.assert_allclose(masks[name], wanted[name], atol=1e-7)


GPUS = {"devices": {"gpu": 2}}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "a GPU of each of two workers": {
        "WORKERS": 2,
        "DEVICES": GPUS,
        "SETTINGS": {"emulate": True},
        "PLACE": "/node:worker/gpu:1",
    },
    "two GPUs with parts of the rows": {
        "DEVICES": GPUS,
        "SETTINGS": {"emulate": True},
        "PLACE": "/node:worker/gpu:0-1",
    },
    "GPUs for two parts of the function": {
        "WORKERS": 2,
        "DEVICES": GPUS,
        "SETTINGS": {"emulate": True},
        "FIRST": "/node:worker:0/gpu:1",
        "SECOND": "/node:worker:1/gpu:0-1",
    },
    "a pipeline": {
        "WORKERS": 2,
        "SETTINGS": {"microbatches": 3},
        "FIRST": "/node:worker:0",
        "SECOND": "/node:worker:1",
    },
    "a ring": {
        "WORKERS": 3,
        "UPDATED": "/node:worker/cpu",
        "OPTIMIZER": {"all_reduce": "ring"},
    },
}


@pytest.mark.parametrize("placement", slow_but(["a pipeline", "a ring"], PLACEMENTS))
def test_a_row_has_its_own_mask_at_any_place(placement: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    masks = run(folder, "by_streams", 2, **PLACEMENTS[placement])[1]
    wanted = expected(folder / "model.py", "by_streams", 2)
    for name in "wv":
        np.testing.assert_allclose(masks[name], wanted[name], atol=1e-7)


def test_a_function_that_mixes_rows_draws_with_one_key(tmp_path: Path) -> None:
    (masks,) = run(tmp_path / "run", "by_training", 1, WORKERS=2, MIXED=True)
    wanted = expected(tmp_path / "run" / "model.py", "by_training", 1)
    for name in "wv":
        np.testing.assert_allclose(masks[name], wanted[name], atol=1e-7)


def test_layers_steps_rows_and_seeds_have_other_masks(tmp_path: Path) -> None:
    one, two = run(tmp_path / "run", "by_key", 2)
    (other,) = run(tmp_path / "seed", "by_key", 1, SEED=1)
    masks = [one["w"], one["v"], two["w"], two["v"], other["w"], other["v"]]
    count = ROWS * WIDTH
    for i, mask in enumerate(masks):
        assert {*np.unique(mask)} == {0.0, 1.0}
        deviation = np.sqrt(count * RATE * (1 - RATE))
        assert abs(mask.sum() - count * (1 - RATE)) < 4 * deviation
        assert len({tuple(row) for row in mask}) == ROWS
        for later in masks[i + 1 :]:
            assert (mask != later).sum() > count // 8


@pytest.mark.parametrize("which", ["by_streams", "by_training"])
def test_an_evaluation_drops_nothing(which: str, tmp_path: Path) -> None:
    file = write(tmp_path / "run", WORKERS=2)
    compile(f"{file}:build_{which}", tmp_path / "build")
    saved = tmp_path / "saved.safetensors"
    options = Options(steps=1, save_params=saved, deadline=300.0)
    outcome = run_in_threads(tmp_path / "build", options)
    trained = load_file(saved)
    total = trained["net.w"].sum() + trained["net.v"].sum()
    assert outcome.eval == {"loss": pytest.approx(total / ROWS, rel=1e-12)}


@pytest.mark.parametrize("which", ["by_streams", "by_training"])
def test_an_exported_model_drops_nothing(which: str, tmp_path: Path) -> None:
    file = write(tmp_path / "run")
    values = np.random.default_rng(0).normal(size=(2, ROWS, WIDTH))
    params = {f"net.{name}": each for name, each in zip("wv", values, strict=True)}
    out = tmp_path / "exported"
    export(f"{file}:build_{which}", out, params=params, outputs=["net"])
    rows = np.eye(ROWS)[:3]
    np.savez(tmp_path / "columns.npz", x=rows)
    script = FOLDER / "run_exported.py"
    files = [tmp_path / "columns.npz", tmp_path / "outputs.npz"]
    subprocess.run([sys.executable, "-I", script, out, *files], check=True, timeout=300)
    with np.load(files[1]) as outputs:
        expected = values.sum(axis=(0, 2))[:3]
        np.testing.assert_allclose(outputs["net"], expected, rtol=1e-12)
        np.testing.assert_allclose(outputs["model.stablehlo:net"], expected, rtol=1e-12)
