"""State of integers and booleans: saved, resumed, predicted, exported and restored.

Asynchronous workers each have their own state; that of the first worker is saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.imported_files import load_program, write_program
from support.marks import slow_but

import placer
from placer.compiler.driver import compile
from placer.exporting.export import export
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.control.result import Result
from placer.runtime.process.threads import run_in_threads

pytestmark = pytest.mark.usefixtures("in_float64")

BATCH, STEPS = 8, 5
RNG = np.random.default_rng(7)
ROWS = {"x": RNG.normal(size=(24, 4)), "y": RNG.normal(size=24)}
AT_SERVERS = {"WORKERS": 2, "UPDATED": "/node:ps/cpu"}
AT_WORKERS = {"WORKERS": 2, "UPDATED": "/node:worker/cpu"}


def updating(update: Any, **more: Any) -> dict[str, Any]:
    return {"OPTIMIZER": {"update": update, **more}}


MODES: dict[str, dict[str, Any]] = {
    "one process": {},
    "servers": AT_SERVERS,
    "all-reduce": AT_WORKERS,
    "microbatches": AT_SERVERS | {"SETTINGS": {"microbatches": 2}},
    "GPUs": AT_SERVERS
    | {
        "DEVICES": {"devices": {"gpu": 2}},
        "SETTINGS": {"emulate": True},
        "COMPUTED": "/node:worker/gpu:1",
    },
    "async": AT_SERVERS | updating("async"),
    "half_async": AT_SERVERS | updating("half_async"),
    "geo": AT_SERVERS | updating({"geo": {"every": 2}}),
    "outer optimizer": AT_SERVERS
    | updating(
        {"geo": {"every": 2, "outer": {"op": "momentum", "learning_rate": 0.7}}}
    ),
    "async at workers": AT_WORKERS | updating({"async": {"max_staleness": 4}}),
    "servers that sum": AT_WORKERS | updating("async", sum="/node:ps"),
    "async heter nodes": AT_SERVERS
    | updating("async")
    | {"HETER": 2, "COMPUTED": "/node:heter/cpu"},
}
IN_EVERY_RUN = ["async", "async at workers"]


def write(folder: Path, **settings: Any) -> Path:
    return write_program(folder, "counting", ROWS, **settings)


def expected(steps: int) -> dict[str, np.ndarray]:
    """Return the state after some steps."""
    hashes, mean = np.full(2, 7, np.uint32), np.zeros(4)
    seen = np.zeros(4, bool)
    for number in range(steps):
        x = ROWS["x"][number % 3 * BATCH :][:BATCH]
        hashes = hashes * np.uint32(2654435761) + np.uint32(number + 1)
        seen |= x.max(0) > 1.5
        mean = 0.9 * mean + 0.1 * x.mean(0)
    count = np.array(steps, np.int32)
    return {"net.steps": count, "net.hash": hashes, "net.seen": seen, "net.mean": mean}


def run(build: Path, **options: Any) -> Result:
    options["save_params"] = build.with_suffix(".safetensors")
    options["emulate"] = read_plan(build).settings.emulate
    return run_in_threads(build, Options(deadline=300.0, **options))


def check(build: Path, result: Result, state: dict[str, np.ndarray]) -> None:
    """Check the saved state, and that the evaluation has used it."""
    saved = load_file(build.with_suffix(".safetensors"))
    assert saved.keys() == {"net.last_kernel", "net.last_bias", *state}
    for name, value in state.items():
        assert saved[name].dtype == value.dtype, name
        np.testing.assert_allclose(saved[name], value, rtol=1e-12)
    error = predicted(saved) - ROWS["y"]
    assert result.eval == {"loss": pytest.approx((error**2).mean(), rel=1e-9)}


def predicted(values: dict[str, np.ndarray]) -> np.ndarray:
    """Return the results of the model in an evaluation."""
    x = np.where(values["net.seen"], ROWS["x"], 1.5 * ROWS["x"]) - values["net.mean"]
    x = x / (1 + 0.1 * values["net.steps"])
    return np.asarray(x @ values["net.last_kernel"] + values["net.last_bias"])[:, 0]


@pytest.mark.parametrize("mode", slow_but(IN_EVERY_RUN, MODES))
def test_state_of_integers_follows_the_steps_in_each_mode(
    mode: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "run", **MODES[mode])
    compile(f"{file}:build", tmp_path / "build")
    result = run(tmp_path / "build", steps=STEPS)
    check(tmp_path / "build", result, expected(STEPS))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a program, its build, and a checkpoint of step 5."""
    folder = tmp_path_factory.mktemp("counting")
    with jax.enable_x64(True):
        file = write(folder / "run", **AT_SERVERS)
        compile(f"{file}:build", folder / "build")
        run(folder / "build", steps=STEPS, checkpoint=folder / "checkpoints")
    return folder


def test_a_run_resumes_with_its_counters_in_another_mode(
    trained: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "run", **MODES["async at workers"])
    compile(f"{file}:build", tmp_path / "build")
    result = run(tmp_path / "build", steps=STEPS + 4, resume=trained / "checkpoints")
    check(tmp_path / "build", result, expected(STEPS + 4))


def test_a_prediction_and_an_export_read_the_counters(
    trained: Path, tmp_path: Path
) -> None:
    saves = trained / "checkpoints"
    wanted = predicted(load_file(trained / "build.safetensors"))
    got = placer.predict(trained / "build", {"x": ROWS["x"]}, params=saves)
    np.testing.assert_allclose(got["net"], wanted, rtol=1e-9)
    out = tmp_path / "exported"
    export(trained / "build", out, params=saves, outputs=["net"])
    exported = jax.export.deserialize(bytearray((out / "model.stablehlo").read_bytes()))
    stored = load_file(out / "params.safetensors")
    np.testing.assert_array_equal(stored["net.seen"], expected(STEPS)["net.seen"])
    np.testing.assert_allclose(
        exported.call(stored, ROWS["x"])["net"], wanted, rtol=1e-6
    )


def test_restore_sets_the_counters_of_the_model(trained: Path) -> None:
    model = placer.restore(
        load_program("counting").counting(), trained / "checkpoints", "net"
    )
    for name, value in expected(STEPS).items():
        leaf = getattr(model, name.removeprefix("net."))[...]
        np.testing.assert_allclose(leaf, value, rtol=1e-6)
    assert model.limit[...] == 1000
    assert model.evaluations[...] == 0


def test_state_that_is_not_trained_keeps_its_initial_value(tmp_path: Path) -> None:
    file = write(tmp_path / "run", KEPT=["net.steps", "net.mean"], **AT_SERVERS)
    compile(f"{file}:build", tmp_path / "build")
    result = run(tmp_path / "build", steps=STEPS)
    kept = {"net.steps": np.array(0, np.int32), "net.mean": np.zeros(4)}
    # A step computes the hash from the new value of the counter, which is dropped.
    hashes = np.full(2, 7, np.uint32)
    for _ in range(STEPS):
        hashes = hashes * np.uint32(2654435761) + np.uint32(1)
    state = expected(STEPS) | kept | {"net.hash": hashes}
    check(tmp_path / "build", result, state)


def test_arrays_that_no_step_changes_are_listed_once(trained: Path) -> None:
    plan = (trained / "build" / "plan.json").read_text()
    assert plan.count("model.limit int32[]") == 1
    assert plan.count("model.evaluations int32[]") == 1
    assert "model.steps int32[]" not in plan
