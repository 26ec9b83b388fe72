"""The ten lines of docs/how-to/jax-models.md train a model of each library."""

from __future__ import annotations

import re
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.marks import slow_but
from support.row_draws import draw_by_row

import placer

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "jax-models.md").read_text(
    encoding="utf-8"
)
PIECES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(SCRIPT,) = (piece for piece in PIECES if piece.startswith("import net\n"))
(KERAS_LINES,) = (piece for piece in PIECES if piece.startswith("logits = "))
LIBRARIES = {
    "nnx": "from flax import nnx\n",
    "linen": "from flax import linen",
    "equinox": "import equinox",
    "haiku": "import haiku",
    "keras": "import keras",
}
"""A line of the model of each library."""
PACKAGES = {"nnx": "flax", "linen": "flax"}


def piece_with(text: str) -> str:
    (piece,) = (each for each in PIECES if text in each)
    return piece


def model_of(library: str) -> str:
    line = LIBRARIES[library]
    (model,) = (each for each in PIECES if line in each and "def make" in each)
    return model


def script_of(library: str) -> str:
    if library != "keras":
        return SCRIPT
    lines = SCRIPT.splitlines()
    for line in KERAS_LINES.splitlines():
        name = line.split()[0]
        (number,) = (i for i, each in enumerate(lines) if each.split()[:1] == [name])
        lines[number] = lines[number][: -len(lines[number].lstrip())] + line
    return "\n".join(lines)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("library", slow_but([], LIBRARIES))
def test_ten_lines_train_and_restore_a_model(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of Flax nnx has the losses of the page's loop in plain JAX, too."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(PACKAGES.get(library, library))
    texts = {"net": model_of(library), "train": script_of(library)}
    if library == "nnx":
        texts["compare"] = piece_with("placer.step_key(0,")
    script = run_last(texts, tmp_path, monkeypatch)
    restored, result = script["model"], script["result"]
    trained = sorted(float(np.abs(x).sum()) for x in result.params.values() if x.size)
    values = getattr(restored, "trainable_variables", None) or leaves(restored)
    found = sorted(float(np.abs(np.asarray(x)).sum()) for x in values)
    np.testing.assert_allclose(found, trained, rtol=1e-6)
    if library != "keras":  # whose model is the same one
        untrained = leaves(script["net"].make())
        assert found != sorted(float(np.abs(x).sum()) for x in untrained)


@pytest.mark.slow  # nodes train a model of Flax
@pytest.mark.usefixtures("quick_compilation")
def test_an_average_of_the_parameters_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, *lines = piece_with("eval_params=net.averaged").splitlines()
    adam = "    optimizer.Adam(1e-3).minimize(loss)"
    assert adam in SCRIPT
    train = SCRIPT.replace(adam, "\n".join(f"    {each}" for each in lines))
    net = model_of("nnx") + piece_with("def ema_of_params")
    script = run_last({"net": net, "train": train}, tmp_path, monkeypatch)
    initial, averaged = leaves(script["net"].make()), leaves(script["model"])
    for one, other in zip(initial, averaged, strict=True):
        # The steps of Adam begin with the learning rate, 0.001, and 0.1 % of each counts.
        np.testing.assert_allclose(np.abs(one - other).max(), 6e-6, rtol=0.02)


@pytest.mark.slow  # as the other examples of the page
def test_the_keys_of_rows_are_those_that_a_run_splits() -> None:
    names: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(piece_with("def row_keys"), names)
    key = jax.random.key(3)
    split = draw_by_row(lambda key: jax.random.split(key, 3), 3)
    got, wanted = map(jax.random.key_data, (names["row_keys"](key, 3), split(key)))
    np.testing.assert_array_equal(got, wanted)


def run_last(
    texts: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Write files and run the last one. Return the names of train.py."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    in_threads = partial(placer.train, in_process=True, steps=3)
    monkeypatch.setattr(placer, "train", in_threads)
    names = runpy.run_path(f"{name}.py")
    return names if name == "train" else vars(sys.modules.pop("train"))


def leaves(model: object) -> list[np.ndarray]:
    """Return the floats of a model."""
    arrays = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    return [np.asarray(x) for x in arrays if x.dtype == np.float32]
