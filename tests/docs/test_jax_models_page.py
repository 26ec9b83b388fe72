"""The ten lines of docs/how-to/jax-models.md train a model of each library."""

from __future__ import annotations

import re
import runpy
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from support.marks import slow_but

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
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(PACKAGES.get(library, library))
    (tmp_path / "net.py").write_text(model_of(library))
    (tmp_path / "train.py").write_text(script_of(library))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    in_threads = partial(placer.train, in_process=True, steps=3)
    monkeypatch.setattr(placer, "train", in_threads)
    script = runpy.run_path("train.py")
    restored, result = script["model"], script["result"]
    trained = sorted(float(np.abs(x).sum()) for x in result.params.values() if x.size)
    values = getattr(restored, "trainable_variables", None) or leaves(restored)
    found = sorted(float(np.abs(np.asarray(x)).sum()) for x in values)
    np.testing.assert_allclose(found, trained, rtol=1e-6)
    if library != "keras":  # whose model is the same one
        untrained = leaves(script["net"].make())
        assert found != sorted(float(np.abs(x).sum()) for x in untrained)


def leaves(model: object) -> list[np.ndarray]:
    """Return the floats of a model."""
    arrays = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    return [np.asarray(x) for x in arrays if x.dtype == np.float32]
