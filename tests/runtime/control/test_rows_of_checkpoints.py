"""What is done with a checkpoint that has rows of sparse tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.sparse_specs import write_sparse_spec

import placer
from placer.checkpoint.folder import incomplete_checkpoint
from placer.command.checkpoints import checkpoints_command
from placer.launcher.predict import make_request, predict_to_file
from placer.report.outcome import prediction_lines
from placer.runtime.control.options import Options
from placer.runtime.control.result import Result
from placer.runtime.process.threads import run_in_threads


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    """A build, the checkpoint of a run of it, and the result of the run."""
    folder = tmp_path_factory.mktemp("clicks")
    user = {"admit": {"count": 14}}
    placer.compile(write_sparse_spec(folder, user=user), folder / "build")
    options = Options(steps=3, checkpoint=folder / "kept")
    result = run_in_threads(folder / "build", options)
    assert isinstance(result, Result)
    return folder / "build", folder / "kept" / "step-000003", result


def test_one_process_predicts_what_all_nodes_do(
    trained: tuple[Path, Path, Result], tmp_path: Path
) -> None:
    build, checkpoint, trained_result = trained
    alone = placer.predict(
        build, params=checkpoint, in_process=True, single_process=True, raw=True
    )
    out = tmp_path / "z.npz"
    request, options = make_request(out, raw=True), Options(init_params=checkpoint)
    result = predict_to_file(build, request, options, in_process=True)
    nodes = np.load(out)
    _, *lines = prediction_lines(result, out)
    for line, (name, counts) in zip(lines, result.tables.items(), strict=True):
        rows, lookups = counts["rows"], counts["lookups"]
        assert rows == trained_result.tables[name]["rows"]
        assert lookups
        assert line == (
            f"  table {name}  {rows} rows  hit rate {(counts['hits'] or 0) / lookups:.1%}"
        )
    np.testing.assert_array_equal(nodes["z"], alone["z"])
    assert len(np.unique(nodes["z"][:, 0])) > 10


def test_a_checkpoint_is_shown_with_its_rows(
    trained: tuple[Path, Path, Result],
) -> None:
    _, checkpoint, result = trained
    listed = CliRunner().invoke(checkpoints_command, [str(checkpoint.parent)])
    line = listed.stdout.splitlines()[1]
    assert line.split()[0] == "step-000003"
    assert "  ps:0-1  " in line
    shown = CliRunner().invoke(checkpoints_command, [str(checkpoint)]).stdout
    rows = {name: counts["rows"] for name, counts in result.tables.items()}
    lines = [line.split() for line in shown.splitlines()]
    for name, dim in (("u.table", 4), ("i.table", 8)):
        found, first = (line for line in lines if line[:1] == [name])
        assert found[1:3] == [f"float32[{rows[name]},", f"{dim}]"]
        assert found[3:5] == ["adagrad", "(sum_of_squares)"]
        assert found[-1] == "ps:0-1"
        second = lines[lines.index(first) + 1]
        held = {"ps:0": int(first[2]), "ps:1": int(second[1])}
        assert first[1] == "ps:0"
        assert second[0] == "ps:1"
        assert held == result.table_rows[name]
        assert sum(held.values()) == rows[name]
        counted = int(first[3]) + int(second[2])
        assert counted == result.tables[name]["counted"]
        assert (counted > 0) == (name == "u.table")
        assert rows[name] > 0


def test_a_folder_with_a_file_of_rows_only_is_an_incomplete_checkpoint(
    tmp_path: Path,
) -> None:
    (tmp_path / "ps-0.rows.safetensors").touch()
    assert incomplete_checkpoint(tmp_path) is not None
