"""The examples in the docstrings of public functions run."""

from __future__ import annotations

import doctest
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.page_commands import cut_functions

import placer
from placer import layers, optimizer
from placer.system.resources import find_file

EXAMPLE = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)
FUNCTIONS = [
    name for name in placer.__all__ if inspect.isfunction(getattr(placer, name))
]
EXAMPLES = {
    name: found[1]
    for name in placer.__all__
    if callable(value := getattr(placer, name))
    and (found := EXAMPLE.search(inspect.getdoc(value) or ""))
}
MODEL = ["data_folder", "export", "predict", "restore", "run", "trace", "Options"]
"""Names whose examples need a model or rows of the reader. Pages and other tests call the
functions."""
TRAIN = ["Callback", "Result", "launch", "train"]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that examples use, in a program, in a folder with a spec and its build."""
    monkeypatch.chdir(tmp_path)
    for name, cut in cut_functions().items():
        monkeypatch.setattr(placer, name, cut)
    shutil.copy(find_file("specs/digits.yaml"), tmp_path)
    public = {name: getattr(placer, name) for name in placer.__all__}
    nodes = {"worker": {"count": 1, "devices": {"gpu": 2}}, "ps": {"count": 1}}
    with placer.Program(nodes=nodes) as program:
        x = layers.data("pixels", "float32[batch, 64]")
        loss = layers.mean(layers.fc(x, 1))
        yield public | {
            "placer": placer,
            "jax": jax,
            "np": np,
            "program": program,
            "layers": layers,
            "optimizer": optimizer,
            "x": x,
            "image": x,
            "loss": loss,
        }


def test_every_public_function_has_an_example():
    assert set(FUNCTIONS) <= EXAMPLES.keys()
    assert {*MODEL, *TRAIN} <= EXAMPLES.keys()


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {*MODEL, *TRAIN}))
def test_the_example_of_a_public_name_runs(name, names):
    run_example(name, names)


def test_the_examples_that_train_run(names):
    placer.compile("digits.yaml", "build")
    for name in TRAIN:
        run_example(name, names)


def run_example(name: str, names: dict[str, Any]) -> None:
    example = inspect.cleandoc("\n" + EXAMPLES[name])
    if ">>>" not in example:
        exec(compile(example, name, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(example, names, name, None, None)
    said: list[str] = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
