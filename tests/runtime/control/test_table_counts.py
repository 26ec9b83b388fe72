"""What a run tells of its sparse tables, and the memory that they may use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sparse_specs import BATCH, ROWS, write_sparse_spec

import placer
from placer.errors import RunError
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.report.numbers import format_size
from placer.report.outcome import result_lines
from placer.runtime.control.events import (
    Event,
    NodeWarning,
    State,
    read_event,
    write_event,
)
from placer.runtime.control.options import Options
from placer.runtime.control.result import Result
from placer.runtime.control.table_counts import TableCounts, add_counts
from placer.runtime.node.memory_watch import MemoryWatch
from placer.runtime.process.threads import run_in_threads
from placer.tables.sparse.memory import MemoryBudget
from placer.tables.sparse.table import SparseTable

STEPS = 4


def trained(folder: Path, **settings: Any) -> tuple[Result, list[Event]]:
    events: list[Event] = []
    build = folder / "build"
    placer.compile(write_sparse_spec(folder, **settings), build)
    result = run_in_threads(build, Options(steps=STEPS), watch=events.append)
    assert isinstance(result, Result)
    return result, events


def test_a_result_counts_what_has_happened_in_tables(tmp_path: Path) -> None:
    counted = {}
    for servers in (1, 3):
        folder = tmp_path / str(servers)
        folder.mkdir()
        result, events = trained(folder, servers=servers)
        counted[servers] = {
            name: {k: n for k, n in counts.items() if k not in ("nbytes", "limit")}
            for name, counts in result.tables.items()
        }
        last = {each.node: each.tables for each in events if isinstance(each, State)}
        total = add_counts(last.values())
        assert {n: c.as_dict() for n, c in total.items()} == result.tables
    assert counted[1] == counted[3]
    rows = np.load(tmp_path / "1" / "rows.npz")
    items = counted[1]["i.table"]
    assert items["rows"] == items["admitted"] == np.unique(rows["items"]).size
    assert items["refused"] == items["forgotten"] == items["evicted"] == 0
    # Each worker looks up the distinct keys of its half of a batch, in 4 steps and in
    # the 2 batches of both evaluations.
    halves = rows["items"].reshape(2 * ROWS // BATCH, -1)
    assert items["lookups"] == 4 * sum(np.unique(half).size for half in halves)
    users = counted[1]["u.table"]
    assert users["rows"] == users["admitted"]
    assert users["refused"] > 0  # the first occurrence of most
    assert 0 < users["hits"] < users["lookups"]
    assert users["hit_rate"] == users["hits"] / users["lookups"]
    lines = [*result_lines(result)]
    at = next(i for i, line in enumerate(lines) if "i.table" in line)
    assert lines[at].startswith("  table i.table  10 rows  10 admitted  hit rate")
    held = result.table_rows["i.table"]
    assert [*held] == ["ps:0", "ps:1", "ps:2"]
    first, second, third = held.values()
    assert first + second + third == 10
    nbytes = result.table_bytes["i.table"]
    assert sum(nbytes.values()) == result.tables["i.table"]["nbytes"]
    assert [*nbytes] == [*held] == [*result.table_counted["i.table"]]
    assert lines[at + 1] == "    " + "; ".join(
        f"{node} {held[node]} rows, {format_size(nbytes[node])}" for node in held
    )


def test_counts_are_events_of_nodes_and_of_a_run() -> None:
    counts = TableCounts(rows=5, lookups=4, hits=3)
    state = State("ps:0", "running", 2, tables={"emb.table": counts})
    assert read_event("ps:0", write_event(state)) == state
    result = Result(1, {}, {}, 0.0, {}, tables={"emb.table": counts.as_dict()})
    again = read_event("worker:0", write_event(result))
    assert isinstance(again, Result)
    assert again.tables["emb.table"]["hit_rate"] == 0.75
    assert repr(again.tables["emb.table"]["rows"]) == "5"
    assert TableCounts().as_dict()["hit_rate"] is None


def test_a_run_whose_rows_do_not_fit_the_memory_warns_once_and_ends(
    tmp_path: Path,
) -> None:
    cpu, item = {"count": 1, "memory": "1MiB"}, {"partitions": 2}
    spec = write_sparse_spec(tmp_path, servers=1, cpu=cpu, item=item)
    rows = dict(np.load(tmp_path / "rows.npz"))
    keys = np.arange(ROWS * 200 * 3)
    more = {name: np.tile(rows[name], 200) for name in ("user", "friend", "y")}
    np.savez(tmp_path / "rows.npz", items=keys.reshape(-1, 3), **more)
    placer.compile(spec, tmp_path / "build")
    events: list[Event] = []
    with pytest.raises(RunError) as caught:
        run_in_threads(tmp_path / "build", watch=events.append)
    message = caught.value.message
    found = re.match(r"table i.table: ([0-9,]+) rows and 72 new rows exceed", message)
    assert "bytes for all tables, with " in message
    assert "used by u.table" in message
    assert found is not None
    rows = int(found[1].replace(",", ""))
    assert rows > 1000
    assert "set a capacity" in str(caught.value)
    (warning,) = [each.message for each in events if isinstance(each, NodeWarning)]
    told = re.match(
        r"ps:0: table i.table: its ([0-9,]+) rows use ([0-9,]+) bytes, and all sparse tables"
        r" use 9[0-9]% of the limit of ([0-9,]+) bytes. The run ends when no more rows fit:"
        r" set 'capacity', 'forget' or 'admit' of the table, or use more servers",
        warning,
    )
    assert told is not None
    warned, used, limit = (int(number.replace(",", "")) for number in told.groups())
    assert 0.7 * rows < warned < rows
    assert used < limit
    assert f"{limit:,} bytes for all tables" in message


def tables_of(
    limit: int, *, capacity: int | None = None
) -> tuple[dict[str, SparseTable], MemoryBudget]:
    """Two tables that share a limit: `full`, with a capacity, and `other`."""
    budget = MemoryBudget(limit)
    made = {
        name: SparseTable(
            Settings(name=name, dim=8, partitions=8, capacity=most), 0, memory=budget
        )
        for name, most in (("full", capacity), ("other", 64))
    }
    return made, budget


def grow(table: SparseTable, rows: int) -> None:
    keys = np.arange(rows, dtype=np.uint64)
    gradients = np.zeros((rows, 8), np.float32)
    table.push(keys, gradients, learning_rate=0.1, step=1)


def test_a_table_that_reaches_its_capacity_within_the_memory_does_not_warn() -> None:
    for capacity, warns in ((4096, False), (8192, True), (None, True)):
        tables, budget = tables_of(1 << 30, capacity=capacity)
        grow(tables["full"], 4096)
        rows = tables["full"].rows
        budget.total = int(budget.used / 0.92)
        told: list[str] = []
        warned: set[str] = set()
        for _ in range(2):  # the second one is of a later attempt of the run
            watch = MemoryWatch("ps:0", tables, warned, told.append)
            watch.check()
            watch.check()
        assert len(told) == warns, capacity
        assert all(text.startswith(f"table full: its {rows:,} rows") for text in told)


def test_the_memory_of_a_save_does_not_warn() -> None:
    tables, budget = tables_of(1 << 30)
    grow(tables["full"], 4096)
    budget.total = int(budget.used / 0.85)
    told: list[str] = []
    with tables["full"].begin_save(budget.total - budget.used):
        assert budget.used > 0.9 * budget.total
        MemoryWatch("ps:0", tables, set(), told.append).check()
    assert not told


def test_the_staleness_has_its_bound_beside_the_largest_one() -> None:
    counts = {"0": 2, "7": 1}
    for bound, most in ((None, "maximum 7"), (9, "maximum 7 of at most 9")):
        result = Result(1, {}, {}, 0.0, {}, staleness=counts, staleness_bound=bound)
        (line,) = [each for each in result_lines(result) if "staleness" in each]
        assert line == f"  staleness   mean 2.33  median 0  {most}"
    result = Result(1, {}, {}, 0.0, {}, staleness_bound=9, geo_staleness=counts)
    (line,) = [each for each in result_lines(result) if "staleness" in each]
    assert line == "  staleness   mean 2.33  median 0  maximum 7  of GEO differences"


def test_metrics_from_before_shrinking_are_labelled() -> None:
    result = Result(4, {"loss": 1.0}, {"loss": 2.0}, 0.0, {})
    facts: dict[str, Any] = {"best_eval": {}, "best_step": None, "diverged": ""}
    for trained in (True, False):
        result.keep_record(
            folder=None, has_trained=trained, has_shrunk=True, other_load=None, **facts
        )
        for text in ("\n".join(result_lines(result)), repr(result)):
            assert text.count("(before shrinking)") == (0 if trained else 2)
