"""A model with a configuration, whose parameter has 93 characters as in a normalizing flow:
train, save, resume, predict and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.exported import run_exported

import placer
from placer.plan.plan import read_plan
from placer.runtime.control.options import Options
from placer.runtime.process.threads import run_in_threads

PATH = (
    "bijection",
    "bijections",
    "1",
    "masked_autoregressive_conditioner",
    "layers",
    "0",
)
LONG = f"flow.{'_'.join(PATH)}_weights_if_unwrapped_values"
assert len(LONG) == len("flow.") + 93
MODEL = """
import jax.numpy as jnp
import numpy as np

import placer
from placer import Program, layers, optimizer, place_guard

SERVERS = 2


def make(sizes, factor=1.0):
    rng = np.random.default_rng(1)
    weights = {"values": factor * rng.normal(size=sizes)}
    layer = {"weights_if_unwrapped": weights, "bias": np.zeros(sizes[1])}
    return {
        "bijection": {
            "bijections": [
                {"scale": np.ones(sizes[0])},
                {"masked_autoregressive_conditioner": {"layers": [layer]}},
            ]
        }
    }


CONFIG = {"sizes": (4, 6), "factor": 0.5}


def flow(params, x):
    first, second = params["bijection"]["bijections"]
    (layer,) = second["masked_autoregressive_conditioner"]["layers"]
    h = jnp.tanh(x * first["scale"] @ layer["weights_if_unwrapped"]["values"] + layer["bias"])
    return h.sum(-1)


def build():
    with Program(
        name="flow",
        precision="float64",
        nodes={"worker": {"count": 2}, "ps": {"count": SERVERS}},
        slicing={"min_block": 4},
        data={"train": {"source": "npz:rows.npz", "batch": 8}},
        epochs=3,
        predict={"outputs": ["flow"]},
    ) as program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard("/node:worker"):
            out = placer.trace(flow, (make, CONFIG), x, name="flow")
            loss = layers.mean_squared_error(out, y, name="loss")
        with place_guard("/node:ps"):
            optimizer.SGD(0.05).minimize(loss)
    return program
"""
STEPS = 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a checkpoint after the third of six steps."""
    folder = tmp_path_factory.mktemp("flow")
    rng = np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=rng.normal(size=(16, 4)), y=rng.normal(size=16))
    (folder / "model.py").write_text(MODEL)
    with jax.enable_x64(True):
        run(folder, "build", checkpoint=folder / "kept", checkpoint_every="3 steps")
    return folder


def run(folder: Path, name: str, **options: Any) -> dict[str, np.ndarray]:
    """Compile the model and run it; return the parameters."""
    placer.compile(f"{folder / 'model.py'}:build", folder / name)
    saved = folder / f"{name}.safetensors"
    run_in_threads(folder / name, Options(steps=STEPS, save_params=saved, **options))
    return load_file(saved)


def plain(folder: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """Train with plain JAX; return the function, and the parameters by name."""
    module: dict[str, Any] = {}
    exec((folder / "model.py").read_text(), module)
    params, rows = module["make"](**module["CONFIG"]), np.load(folder / "rows.npz")

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((module["flow"](params, x) - y) ** 2).mean()

    for step in range(STEPS):
        part = slice(step % 2 * 8, step % 2 * 8 + 8)
        gradient = jax.grad(loss)(params, rows["x"][part], rows["y"][part])
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    keystr = jax.tree_util.keystr
    named = {
        f"flow.{keystr(path, simple=True, separator='_')}": np.asarray(leaf)
        for path, leaf in flat
    }
    return params, named


def test_it_trains_as_plain_jax(trained: Path) -> None:
    with jax.enable_x64(True):
        _, wanted = plain(trained)
    got = load_file(trained / "build.safetensors")
    assert LONG in got
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-12)


def test_it_resumes_on_another_placement(trained: Path) -> None:
    changed = MODEL.replace("SERVERS = 2", "SERVERS = 1")
    (trained / "model.py").write_text(changed)
    with jax.enable_x64(True):
        start, history = trained / "kept" / "step-000003", trained / "resumed.jsonl"
        got = run(trained, "resumed", resume=start, history=history)
    assert len(history.read_text().splitlines()) == STEPS - 3
    for name, values in load_file(trained / "build.safetensors").items():
        np.testing.assert_allclose(got[name], values, rtol=1e-12)
    (trained / "model.py").write_text(MODEL)


def test_programs_have_a_short_name_which_the_plan_explains(trained: Path) -> None:
    plan = read_plan(trained / "build")
    short = {each.name: each.short_name for each in plan.parameters}
    found = short[LONG]
    assert found is not None
    assert len(found) < 64
    assert short["flow.bijection_bijections_0_scale"] is None
    key = found.partition(".")[2]
    text = (trained / "build" / "worker" / "program.py").read_text()
    assert f"p.flow.{key}" in text
    assert "see `short_name` in plan.json" in text
    assert LONG.partition(".")[2] not in text


def test_it_predicts_and_is_exported(trained: Path) -> None:
    x = np.random.default_rng(3).normal(size=(5, 4))
    np.savez(trained / "new.npz", x=x)
    params = trained / "build.safetensors"
    got = placer.predict(
        trained / "build", trained / "new.npz", params=params, in_process=True
    )["flow"]
    with jax.enable_x64(True):
        module: dict[str, Any] = {}
        exec(MODEL, module)
        wanted = module["flow"](plain(trained)[0], x)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    placer.export(trained / "build", trained / "exported", params=params)
    text = (trained / "exported" / "model.py").read_text()
    assert "make(sizes=(4, 6), factor=0.5)" in text
    # Another process, because the exported model must not import placer.
    exported = run_exported(trained / "exported", {"x": x}, trained)
    np.testing.assert_allclose(exported["flow"], wanted, rtol=1e-12)
