"""placer in a notebook that a real Jupyter kernel runs, and in interactive sessions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.real_runs import process_environment

CELLS = {
    "imports": """\
import placer
from placer import Program, layers, optimizer

def make(source, evaluated=None):
    data = {"train": {"source": source, "batch": 4}}
    if evaluated:
        data["eval"] = {"source": evaluated}
    with Program(nodes={"worker": {"count": 2}}, data=data) as program:
        x = layers.data("x", "float32[batch, 1]")
        loss = layers.mean(layers.fc(x, 1), name="loss")
        optimizer.SGD(0.1).minimize(loss)
    return program

def train(*sources, **options):
    plan = placer.compile(make(*sources), "build")
    return plan.name, placer.launch("build", **options).steps
""",
    "npz": 'train("npz:rows.npz", in_process=True)',
    "csv": 'train("csv:data/rows.csv", in_process=True)',
    "parquet": 'train("parquet:rows.parquet", in_process=True)',
    "processes": 'train("csv:data/rows.csv", "parquet:rows.parquet")',
    "write a reader": """\
%%writefile reader.py
import placer

def train():
    for line in open(placer.data_folder() / "data" / "rows.csv").readlines()[1:]:
        yield {"x": [float(line)]}
""",
    "reader": 'train("python:reader:train", in_process=True)',
    "reader in a cell": """\
def rows():
    yield {"x": [1.0]}

train("python:__main__:rows")
""",
    "reader object": "train(rows)",
    "write a function": "%%writefile functions.py\ndef double(x):\n    return 2 * x\n",
    "trace": """\
from functions import double

def traced(function):
    with Program(
        nodes={"worker": {}}, data={"train": {"source": "npz:rows.npz", "batch": 4}}
    ) as program:
        x = layers.data("x", "float32[batch, 1]")
        loss = layers.mean(layers.fc(placer.trace(function, x), 1), name="loss")
        optimizer.SGD(0.1).minimize(loss)
    placer.compile(program, "build")
    return placer.launch("build", in_process=True).metrics["loss"]

first = traced(double)
first
""",
    "write another function": "%%writefile functions.py\ndef double(x):\n    return 0 * x\n",
    "trace again": "traced(double)",
    "trace of a cell": "def triple(x):\n    return 3 * x\n\ntraced(triple)\n",
    "mistake": 'make("npz:rows.npz").update(\n    epoch=3\n)',
    "repr": 'make("npz:rows.npz")',
}


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which the user's settings of Jupyter do not matter."""
    names = "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"
    return process_environment() | {each: str(folder / each.lower()) for each in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data for a notebook."""
    folder = tmp_path_factory.mktemp("notebook")
    values = np.arange(8, dtype=np.float32)
    np.savez(folder / "rows.npz", x=values[:, None])
    (folder / "data").mkdir()
    (folder / "data" / "rows.csv").write_text("x\n" + "".join(f"{v}\n" for v in values))
    pq.write_table(pa.table({"x": values}), folder / "rows.parquet")
    return folder


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[str, str]:
    """Run the cells in a kernel; return the output of each, errors included."""
    # In a process of its own: nbclient leaves an event loop and its sockets behind.
    script = """
import json, sys
import nbformat.v4 as v4
from nbclient import NotebookClient

cells = [v4.new_code_cell(text) for text in json.load(sys.stdin)]
notebook = v4.new_notebook(cells=cells)
NotebookClient(notebook, allow_errors=True, timeout=120).execute()
texts = []
for cell in cells:
    parts = []
    for out in cell.outputs:
        parts += out.get("traceback", [out.get("text", "")])
        parts.append(out.get("data", {}).get("text/plain", ""))
    texts.append("\\n".join(parts))
json.dump(texts, sys.stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(list(CELLS.values())),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder) | {"JPY_SESSION_NAME": str(folder / "churn 2.ipynb")},
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    texts = [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in json.loads(done.stdout)]
    return dict(zip(CELLS, texts, strict=True))


def value_of(output: str) -> str:
    """Return the value that a cell shows, after the progress of a run."""
    return output.strip().splitlines()[-1]


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "processes", "reader"])
def test_sources_are_in_the_folder_of_the_notebook(outputs, kind):
    assert value_of(outputs[kind]) == "('churn_2', 2)"


def test_a_function_of_a_module_beside_the_notebook_is_traced(outputs):
    assert float(value_of(outputs["trace"])) != 0


def test_a_changed_module_is_read_again(outputs):
    assert float(value_of(outputs["trace again"])) != float(value_of(outputs["trace"]))


def test_a_reader_in_a_cell_is_refused_with_what_to_do(outputs):
    text = outputs["reader in a cell"]
    assert text.startswith(
        "SpecError: Cell In[1]:8:10: __main__.py is not in the folder"
    )
    assert "put %%writefile functions.py at the top of its cell" in text


def test_a_reader_that_is_no_name_is_refused_with_what_to_do(outputs):
    text = outputs["reader object"]
    assert "lists and mappings, not <function rows at" in text
    assert "name it: 'python:rows:FUNCTION' for a source" in text


def test_a_function_in_a_cell_is_refused_with_what_to_do(outputs):
    text = outputs["trace of a cell"]
    assert "'triple' is not defined in a file, so nodes cannot import it" in text
    assert "%%writefile model.py at the top of its cell" in text


def test_an_error_is_shown_with_its_cell_and_without_calls_inside_placer(outputs):
    assert outputs["mistake"].strip() == (
        "SpecError: Cell In[15]:1:1: a program has no section 'epoch'\n"
        '  1 | make("npz:rows.npz").update(\n'
        "    | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  hint: did you mean 'epochs'?"
    )


def test_a_program_is_shown_with_its_cell(outputs):
    assert outputs["repr"].strip() == "<Program of Cell In[1]: 2 ops>"


LINES = """\
import placer
from placer import Program, layers, optimizer
from typed import double
with Program(nodes={"worker": {}}, data={"train": {"source": "npz:rows.npz", "batch": 4}}) as program:
    x = layers.data("x", "float32[batch, 1]")
    loss = layers.mean(layers.fc(placer.trace(double, x), 1))
    optimizer.SGD(0.1).minimize(loss)

print("trained", placer.compile(program, "typed").name, placer.launch("typed", in_process=True).steps)
program.update(epoch=3)
"""


@pytest.mark.parametrize(
    ("command", "position"),
    [
        (("-i",), r"<stdin>(-\d+)?:1:1"),  # with a number since Python 3.13
        (("-m", "IPython", "--simple-prompt", "--colors=nocolor"), r"Cell In\[6\]:1:1"),
    ],
    ids=["python", "ipython"],
)
def test_a_model_can_be_typed_in(folder, command, position):
    (folder / "typed.py").write_text("def double(x):\n    return 2 * x\n")
    done = subprocess.run(
        [sys.executable, *command],
        input=LINES,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "trained session 2" in said
    message = f"SpecError: {position}: a program has no section 'epoch'"
    assert re.search(message, said)
    assert os.path.isdir(folder / "typed")
