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
from support.row_draws import draw_by_row

import placer

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "jax-models.md").read_text(
    encoding="utf-8"
)
PIECES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(SCRIPT,) = (piece for piece in PIECES if piece.startswith("import net\n"))
(KERAS_LINES,) = (piece for piece in PIECES if piece.startswith("logits = "))
PACKAGES = {"net": "flax", "linen_net": "flax", "haiku_net": "haiku"} | {
    f"{name}_net": name for name in ("equinox", "keras")
}
"""The package of each file with a model."""


def piece_with(text: str) -> str:
    (piece,) = (each for each in PIECES if text in each)
    return piece


def script_of(name: str) -> str:
    script = SCRIPT.replace("import net\n", f"import {name} as net\n")
    if name != "keras_net":
        return script
    lines = script.splitlines()
    for line in KERAS_LINES.splitlines():
        name = line.split()[0]
        (number,) = (i for i, each in enumerate(lines) if each.split()[:1] == [name])
        lines[number] = lines[number][: -len(lines[number].lstrip())] + line
    return "\n".join(lines)


@pytest.mark.slow  # models of five libraries
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("name", PACKAGES)
def test_ten_lines_train_and_restore_a_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(PACKAGES[name])
    texts = {name: piece_with(f"# {name}.py\n"), "train": script_of(name)}
    script = run_script(texts, tmp_path, monkeypatch)
    restored, result = script["model"], script["result"]
    trained = sorted(float(np.abs(x).sum()) for x in result.params.values() if x.size)
    values = getattr(restored, "trainable_variables", None) or leaves(restored)
    found = sorted(float(np.abs(np.asarray(x)).sum()) for x in values)
    np.testing.assert_allclose(found, trained, rtol=1e-6)
    if name != "keras_net":  # whose model is the same one
        untrained = leaves(script["net"].make())
        assert found != sorted(float(np.abs(x).sum()) for x in untrained)


@pytest.mark.slow  # nodes train a model of Flax
@pytest.mark.usefixtures("quick_compilation")
def test_an_average_of_the_parameters_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = piece_with("eval_params=rules.averaged").split("\n", 1)[1]
    adam = "    optimizer.Adam(1e-3).minimize(loss)\n"
    assert adam in SCRIPT
    train = "import rules\n" + SCRIPT.replace(adam, lines.replace("error", "loss"))
    texts = {name: piece_with(f"# {name}.py\n") for name in ("net", "rules")}
    script = run_script(texts | {"train": train}, tmp_path, monkeypatch)
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


def run_script(
    texts: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Write files, run train.py and return its names."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    in_threads = partial(placer.train, in_process=True, steps=3)
    monkeypatch.setattr(placer, "train", in_threads)
    return runpy.run_path("train.py")


def leaves(model: object) -> list[np.ndarray]:
    """Return the floats of a model."""
    arrays = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    return [np.asarray(x) for x in arrays if x.dtype == np.float32]
