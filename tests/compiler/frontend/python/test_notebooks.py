"""A program that is built in a notebook cell belongs to the folder of the notebook.

Cells are run here as ipykernel runs them: compiled under the name of a file that is not
written, with their text in linecache.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placer import SpecError
from placer.plan.plan import read_sources

PROGRAM = """\
import placer
from placer import Program, layers, optimizer
with Program(
    nodes={"worker": {}},
    data={"train": {"source": SOURCE, "batch": 4}},
) as program:
    x = layers.data("x", "float32[batch, 1]")
    loss = layers.mean(layers.fc(x, 1))
    optimizer.SGD(0.1).minimize(loss)
"""


class Notebook:
    """Runs cells in order, in one namespace."""

    def __init__(self, temporary: Path) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._folder = temporary / "ipykernel_4800"
        self._cells = 0

    def run(self, text: str) -> None:
        self._cells += 1
        file = str(self._folder / f"{2546692155 + self._cells}.py")
        lines = text.splitlines(keepends=True)
        linecache.cache[file] = (len(text), None, lines, file)
        exec(compile(text, file, "exec"), self.names)


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    folder = tmp_path / "notebook"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("JPY_SESSION_NAME", "notebook.ipynb")
    return Notebook(tmp_path)


def test_data_is_in_the_folder_of_the_notebook(notebook, tmp_path):
    np.savez("rows.npz", x=np.zeros((8, 1), np.float32))
    notebook.run('SOURCE = "npz:rows.npz"')
    notebook.run(PROGRAM)
    notebook.run('plan = placer.compile(program, "build")')
    notebook.run('result = placer.launch("build", in_process=True)')
    assert notebook.names["plan"].name == "notebook"
    assert notebook.names["result"].steps == 2
    spec = Path("build") / read_sources(Path("build")).spec
    assert spec.parent.resolve() == tmp_path / "notebook"


def test_a_source_is_a_module_beside_the_notebook(notebook):
    Path("rows.py").write_text("def rows():\n    yield {'x': [1]}\n")
    notebook.run('SOURCE = "python:rows:rows"')
    notebook.run(PROGRAM)
    notebook.run('plan = placer.compile(program, "build")')
    assert notebook.names["plan"].modules == ("rows",)


@pytest.mark.parametrize("module", ["__main__", "made"])
def test_a_source_in_a_cell_is_refused_with_a_hint(notebook, module):
    notebook.run("def rows():\n    yield {'x': [1]}\n")
    notebook.run(f'SOURCE = "python:{module}:rows"')
    notebook.run(PROGRAM)
    with pytest.raises(SpecError) as caught:
        notebook.run('placer.compile(program, "build")')
    file = "functions.py" if module == "__main__" else "made.py"
    assert f"{module}.py is not in the folder of the spec" in str(caught.value)
    assert f"%%writefile {file}" in str(caught.value)
    assert "with Program(" in str(caught.value)  # the line of the cell is shown


TRACED = """\
with Program(
    nodes={"worker": {}}, data={"train": {"source": "npz:rows.npz", "batch": 4}}
) as program:
    x = layers.data("x", "float32[batch, 1]")
    y = placer.trace(double, x)
"""


def test_a_traced_function_is_in_a_module_beside_the_notebook(notebook, monkeypatch):
    Path("doubled.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(".")
    notebook.run("import placer\nfrom placer import Program, layers")
    notebook.run("from doubled import double")
    notebook.run(TRACED)
    assert notebook.names["y"].shape == ("batch", 1)
    del sys.modules["doubled"]


def test_a_traced_function_in_a_cell_is_refused_with_a_hint(notebook):
    notebook.run("import placer\nfrom placer import Program, layers")
    notebook.run("def double(x):\n    return 2 * x\n")
    with pytest.raises(SpecError) as caught:
        notebook.run(TRACED)
    assert "'double' is not defined in a file, so nodes cannot import it" in str(
        caught.value
    )
    assert "%%writefile" in str(caught.value.hint)
    assert "placer.trace(double, x)" in str(caught.value)
