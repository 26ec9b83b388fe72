"""`placer.launch` in a cell shows its progress as an output of the cell, with a real
kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from placer.report.progress.notebook import NotebookOutput, in_notebook
from placer.report.progress.view import RunView
from placer.runtime.control.events import CheckpointSaved, Start, State, Step
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.control.wait_counts import WaitCounts
from placer.system.resources import find_file


def run_cells(folder: Path, *cells: str) -> list[list[Any]]:
    """Run cells in a new kernel, in a folder; return the outputs of each."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
    )
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute(
        cwd=str(folder)
    )
    return [cell.outputs for cell in notebook.cells]


# The sockets of a kernel that ends.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_cell_shows_one_output_that_is_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    spec = find_file("specs/two_workers.yaml")
    compiled, launched = run_cells(
        tmp_path,
        f"import placer\nplacer.compile({str(spec)!r}, 'build')",
        "result = placer.launch('build', steps=30)\nresult",
    )
    assert compiled[0].data["text/plain"].startswith("<Plan of two_workers: worker:0-1")
    progress, value = launched
    assert progress.output_type == "display_data"
    assert "step 30 of 30" in progress.data["text/html"]
    assert "<progress" in progress.data["text/html"]
    assert progress.data["text/plain"].startswith("two_workers  step 30 of 30")
    assert "evaluation after step" in progress.data["text/plain"]
    assert value.data["text/plain"].startswith("Result: 30 steps")
    for shown in (compiled[0], value):
        assert '<img src="data:image/svg+xml;base64,' in shown.data["text/html"]


def test_an_output_has_what_each_node_does_as_html_and_as_text() -> None:
    output = NotebookOutput(RunView("<b>", ("worker:0", "ps:0"), lambda: 5.0))
    output.run.update(Start(1, 20, 10))
    waits = WaitCounts(8, 4, ("ps:0",))
    output.run.update(State("worker:0", "running", 3, (), 2_000_000, waits=waits))
    tables = {"emb.table": TableCounts(rows=1000, lookups=8, hits=6)}
    output.run.update(State("ps:0", "running", 3, tables=tables))
    for number in range(1, 61):
        output.run.update(Step(number, 1, {"loss": 0.5}, {"accuracy": number / 100}))
    output.run.update(CheckpointSaved(60, "<kept>/step-000060", best=True))
    content = output._content(ended=False)
    line = "checkpoint of step 60, the best so far: &lt;kept&gt;/step-000060"
    assert f"{line}</div>" in content["text/html"]
    assert "&lt;b&gt;" in content["text/html"]
    assert "<td>worker:0</td><td>running</td><td>3</td>" in content["text/html"]
    text = content["text/plain"].splitlines()
    assert "node      state    step  sent     waits  mostly for" in text
    assert "worker:0  running  3     2.0 MB   50%    ps:0" in text
    assert "checkpoint of step 60, the best so far: <kept>/step-000060" in text
    assert "<td>emb.table</td><td>1,000</td>" in content["text/html"]
    assert "emb.table  1,000  0         0        0          75.0%     0 bytes" in text
    assert "10 before" in text
    assert text[-1].split() == ["60", "1", "0.6"]


def test_this_process_is_no_notebook() -> None:
    assert not in_notebook()
