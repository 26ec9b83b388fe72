"""State of Haiku and Keras: as the library's own, resumed, predicted and restored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.histories import read_losses
from support.imported_files import load_program, write_program
from support.marks import slow_but

import placer
from placer.compiler.driver import compile
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

BATCH, STEPS = 8, 6
RNG = np.random.default_rng(7)
ROWS = {
    "x": RNG.normal(size=(24, 4)).astype(np.float32),
    "y": RNG.normal(size=24).astype(np.float32),
}


def write(folder: Path, **settings: Any) -> Path:
    return write_program(folder, "library_state", ROWS, **settings)


def plain(module: Any, library: str) -> tuple[list[float], Any, np.ndarray]:
    """Return the losses, the final state and the predictions of the library."""
    apply = getattr(module, f"{library}_apply")
    trees = (getattr(module, f"{library}_{name}")() for name in ("params", "state"))
    params, variables = trees
    seeds = [
        at
        for at, x in enumerate(jax.tree.leaves(variables))
        if getattr(x, "path", "").endswith("seed_generator_state")
    ]
    params, state = (jax.tree.map(jax.numpy.asarray, x) for x in (params, variables))
    unchanged = {at: state[at] for at in seeds}

    def result(params: Any, state: Any, x: Any, key: Any, training: bool) -> Any:
        more = {"key": key} if library == "haiku" else {}
        if library == "keras":  # the last variable is the seed of the dropout
            state = [*state[:-1], jax.random.key_data(jax.random.fold_in(key, 0))]
        return apply(params, state, x, training=training, **more)

    def loss(params: Any, state: Any, key: Any, x: Any, y: Any) -> Any:
        returned, new = result(params, state, x, key, True)
        return ((returned - y) ** 2).mean(), new

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    losses = []
    for number in range(1, STEPS + 1):
        part = slice((number - 1) % 3 * BATCH, (number - 1) % 3 * BATCH + BATCH)
        key = placer.step_key(module.SEED, "net", number)
        x, y = ROWS["x"][part], ROWS["y"][part]
        for i, at in enumerate(seeds):
            state[at] = jax.random.key_data(jax.random.fold_in(key, i))
        (error, state), grads = step(params, state, key, x, y)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        losses.append(float(error))
    for at, value in unchanged.items():
        state[at] = value
    returned, _ = result(params, state, ROWS["x"], jax.random.key(0), False)
    return losses, state, np.asarray(returned)


@pytest.mark.filterwarnings(
    "ignore:jax.core.get_opaque_trace_state is deprecated:DeprecationWarning"
)
@pytest.mark.parametrize("library", slow_but(["haiku"], ["haiku", "keras"]))
def test_state_is_that_of_the_library(library: str, tmp_path: Path) -> None:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip(library)
    module = load_program("library_state")
    losses, state, predictions = plain(module, library)
    first = write(tmp_path / "run")
    compile(f"{first}:build_{library}", tmp_path / "build")
    saves, history = tmp_path / "checkpoints", tmp_path / "history.jsonl"
    half = Options(steps=STEPS // 2, checkpoint=saves, deadline=300.0)
    run_in_threads(tmp_path / "build", half)
    second = write(tmp_path / "again", WORKERS=2, UPDATED="/node:ps/cpu")
    compile(f"{second}:build_{library}", tmp_path / "other")
    options = Options(
        steps=STEPS, resume=saves, checkpoint=saves, history=history, deadline=300.0
    )
    run_in_threads(tmp_path / "other", options)
    found = read_losses(history)
    assert found[-STEPS // 2 :] == pytest.approx(losses[STEPS // 2 :], rel=1e-4)
    model = {
        name: getattr(module, f"{library}_{name}")() for name in ("params", "state")
    }
    restored = jax.tree.leaves(placer.restore(model, saves, "net")["state"])
    values = jax.tree.leaves(state)
    if library == "keras":
        restored, values = restored[:-1], values[:-1]
    for leaf, value in zip(restored, values, strict=True):
        np.testing.assert_allclose(leaf, value, rtol=1e-4, atol=1e-6)
    got = placer.predict(tmp_path / "other", {"x": ROWS["x"]}, params=saves)
    np.testing.assert_allclose(got["net"], predictions, rtol=1e-3, atol=1e-5)
