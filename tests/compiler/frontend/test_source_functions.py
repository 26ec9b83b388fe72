"""The function of a `python:` source must exist, as far as its module's text shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from placer.compiler.frontend import load_text
from placer.compiler.graph.model import Model
from placer.errors import SpecError

SPEC = """\
nodes: {worker: {count: 1}}
inputs: {x: "float32[batch, 2]"}
data: {train: {source: "python:rows:train", batch: 4}}
graph:
  - {name: h, op: fc, in: x, size: 1}
  - {name: loss, op: reduce_mean, in: h}
train:
  minimize: loss
  optimizer: {op: sgd, learning_rate: 0.1, place: /node:worker}
"""


def load_with(folder: Path, module: str) -> Model:
    (folder / "rows.py").write_text(module)
    return load_text(SPEC, "model.yaml", folder)


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("def tarin(): ...", ["  hint: did you mean 'tarin'?"]),
        ("class Other:\n    x = 1", []),
        ("", []),
    ],
)
def test_a_missing_function_is_an_error_of_the_spec(module, hint, tmp_path):
    with pytest.raises(SpecError) as caught:
        load_with(tmp_path, module)
    first, *rest = str(caught.value).splitlines()
    assert first == "model.yaml:3:25: rows.py has no function 'train'"
    assert rest[2:] == hint


@pytest.mark.parametrize(
    "module",
    [
        "def train(): ...",
        "class train: ...",
        "train = list",
        "a, train = 1, list",
        "from other import train",
        "from other import read as train",
        "import train",
        "from other import *",
        "try:\n    from fast import train\nexcept ImportError:\n    def train(): ...",
        "if (train := list): ...",
        "for train in [list]: ...",
        "def make():\n    global train\n    train = list\nmake()",
        "globals()['train'] = list",
        "exec('train = list')",
        "def __getattr__(name): return list",
        "import sys\nsetattr(sys.modules[__name__], 'train', list)",
    ],
)
def test_a_function_that_may_exist_is_not_an_error(module, tmp_path):
    assert load_with(tmp_path, module).modules
