"""`placer show RUN --tables`: the sparse tables of a run while it runs and after its end."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from placer.command.show import show_command
from placer.launcher import tables_file
from placer.launcher.run_record import RunRecord
from placer.report.run_files import Command, read_run
from placer.report.run_tables import run_tables_view
from placer.runtime.control.events import FewerNodes, State, Step
from placer.runtime.control.table_counts import TableCounts

COMMAND = Command(
    "clicks", "placer train clicks.yaml", 1.0, "clicks.yaml", {}, {}, {}, {}, {}
)
STEP = Step(401, 1, {"loss": 0.5})


def report(node: str, step: int, rows: int, since: int = 0) -> State:
    counts = TableCounts(
        rows=rows,
        nbytes=100 * rows,
        limit=1_000_000,
        since=since,
        admitted=rows + 1,
        forgotten=1,
        lookups=4000,
        hits=rows,
    )
    tables = {"wide.table": counts, "vectors.table": counts}
    return State(node, "running", step, tables=tables)


def shown(folder: Path, width: int = 200) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    for view in run_tables_view(read_run(folder), screen):
        screen.print(view)
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def printed(folder: Path) -> dict:
    result = CliRunner().invoke(show_command, [str(folder), "--tables", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_tables_of_a_run_are_shown_while_it_runs_and_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    write = tables_file.write_json
    monkeypatch.setattr(
        tables_file,
        "write_json",
        lambda path, content: (written.append(path), write(path, content)),
    )
    with RunRecord(lambda _: tmp_path, COMMAND) as running:
        for event in (report("ps:10", 400, 2000, 400), report("ps:2", 401, 3000, 400)):
            running.note(event)
        assert not (tmp_path / "tables.json").exists()  # no step is done
        running.note(STEP)
        first, since, heads, *lines = shown(tmp_path)
        assert first.startswith(
            f"{tmp_path.name} is running; counts in step 401, 0 s ago"
        )
        assert since == "since step 400: admitted, refused, forgotten, hit rate"
        assert " ".join(heads.split()) == (
            "table node rows counted admitted refused forgotten evicted hit rate memory"
        )
        assert [" ".join(line.split()) for line in lines] == [
            "wide.table all 5,000 0 5,002 0 2 0 62.5% 500.0 kB",
            "ps:2 3,000 0 3,001 0 1 0 75.0% 300.0 kB",
            "ps:10 2,000 0 2,001 0 1 0 50.0% 200.0 kB",
            "vectors.table all 5,000 0 5,002 0 2 0 62.5% 500.0 kB",
            "ps:2 3,000 0 3,001 0 1 0 75.0% 300.0 kB",
            "ps:10 2,000 0 2,001 0 1 0 50.0% 200.0 kB",
            "",
            "node memory of all tables limit used",
            "ps:2 600.0 kB 1.0 MB 60.0%",
            "ps:10 400.0 kB 1.0 MB 40.0%",
            "",
        ]
        narrow = next(x for x in shown(tmp_path, 70) if x.startswith("table ")).split()
        assert "refused" not in narrow
        assert {"rows", "forgotten", "admitted", "memory"} <= {*narrow}
        running.note(report("ps:2", 402, 3001))  # within the interval
        running.note(report("ps:2", 402, 3001))
        assert len(written) == 1
    assert len(written) == 2
    facts = printed(tmp_path)
    assert (facts["ended"], facts["step"]) == ("finished", 402)
    assert facts["tables"]["wide.table"]["rows"] == 5001
    assert facts["tables"]["wide.table"]["since"] == 400
    assert facts["tables"]["wide.table"]["nodes"]["ps:2"]["hit_rate"] == 3001 / 4000
    assert shown(tmp_path)[0] == f"{tmp_path.name} (finished); counts in step 402"


def test_counts_of_nodes_that_a_run_has_lost_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placer.launcher.run_record.read_plan", lambda _: None)
    monkeypatch.setattr("placer.launcher.run_record.settings_of", lambda *_: {})
    fewer = FewerNodes("lost ps:1", str(tmp_path), {})
    evaluated = Step(402, 1, {"loss": 0.5}, {"loss": 0.5})
    with RunRecord(lambda _: tmp_path, COMMAND) as running:
        for event in (report("ps:0", 401, 20), report("ps:1", 401, 30), STEP, fewer):
            running.note(event)
        running.note(report("ps:0", 402, 50))
        running.note(evaluated)
    assert [*printed(tmp_path)["tables"]["wide.table"]["nodes"]] == ["ps:0"]
    last = (tmp_path / "history.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["tables"]["wide.table"]["rows"] == 50


def test_a_run_without_sparse_tables_has_no_counts(tmp_path: Path) -> None:
    with RunRecord(lambda _: tmp_path, COMMAND) as running:
        running.note(STEP)
    assert printed(tmp_path)["tables"] == {}
    assert shown(tmp_path) == []


def test_json_needs_a_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(show_command, [str(tmp_path), "--tables", "--json"])
    assert result.exit_code == 2
    assert "--json needs a run" in result.stderr
