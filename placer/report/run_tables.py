"""Shows the sparse tables of a run: their counts on each node, and the memory of the nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from placer.report.fitted_table import ListColumn, fitted_table
from placer.report.numbers import format_count, format_size
from placer.report.progress.passes import format_wait
from placer.report.progress.view import since_text
from placer.report.run_files import RUNNING, Run, RunTables
from placer.runtime.control.table_counts import TableCounts

ALL = "all"
"""Stands for all nodes of a table."""


def run_tables_view(run: Run, screen: Console) -> Iterator[RenderableType]:
    """Yield the counts of each sparse table on each node, and the memory of each node;
    nothing for a run that has written no counts.

    On a narrow screen, columns with counts are left out.

    Raises:
        PlacerError: the file of the counts is damaged or cannot be read.
    """
    found = run.tables()
    if found is None:
        return
    step, name = format_count(found.step), run.folder.name
    if run.end.ended == RUNNING:
        age = format_wait(max(0.0, time.time() - found.time))
        yield Text(f"{name} is running; counts in step {step}, {age} ago")
    else:
        yield Text(f"{name} ({run.end.ended}); counts in step {step}")
    if since := since_text(
        each for of in found.tables.values() for each in of.values()
    ):
        yield Text(since)
    yield fitted_table(_counts(found), screen)
    yield Text()
    yield fitted_table(_memory(found), screen)
    yield Text()


def run_tables_facts(run: Run) -> dict[str, Any]:
    """Return the counts of each sparse table for JSON: over all nodes, and on each node.

    Raises:
        PlacerError: the file of the counts is damaged or cannot be read.
    """
    found = run.tables()
    tables = {} if found is None else found.tables
    return {
        "run": str(run.folder),
        "ended": run.end.ended,
        "step": None if found is None else found.step,
        "time": None if found is None else found.time,
        "tables": {
            name: {
                **_total(nodes).as_dict(),
                "nodes": {node: each.as_dict() for node, each in nodes.items()},
            }
            for name, nodes in tables.items()
        },
    }


def _total(nodes: Mapping[str, TableCounts]) -> TableCounts:
    return sum(nodes.values(), start=TableCounts())


def _counts(found: RunTables) -> Iterator[ListColumn]:
    """Yield the columns of the counts: a row for each node of a table, and for all nodes
    if there are several."""
    heads: list[tuple[str, str]] = []
    counts: list[TableCounts] = []
    for name, nodes in found.tables.items():
        listed = {ALL: _total(nodes), **nodes} if len(nodes) > 1 else nodes
        heads += [("" if i else name, node) for i, node in enumerate(listed)]
        counts += listed.values()

    def column(
        name: str, read: Callable[[TableCounts], int], drop: int = 0
    ) -> ListColumn:
        cells = [format_count(read(each)) for each in counts]
        return ListColumn(name, cells, is_number=True, drop=drop)

    rates = [each.hit_rate for each in counts]
    yield ListColumn("table", [name for name, _ in heads])
    yield ListColumn("node", [node for _, node in heads])
    yield column("rows", lambda each: each.rows)
    yield column("counted", lambda each: each.counted, drop=2)
    yield column("admitted", lambda each: each.admitted, drop=1)
    yield column("refused", lambda each: each.refused, drop=4)
    yield column("forgotten", lambda each: each.forgotten)
    yield column("evicted", lambda each: each.evicted, drop=3)
    shown = ["" if rate is None else f"{rate:.1%}" for rate in rates]
    yield ListColumn("hit rate", shown, is_number=True)
    memory = [format_size(each.nbytes) for each in counts]
    yield ListColumn("memory", memory, is_number=True)


def _memory(found: RunTables) -> Iterator[ListColumn]:
    """Yield the columns of the memory that all sparse tables of a node use together."""
    used: dict[str, int] = {}
    limits: dict[str, int] = {}
    for nodes in found.tables.values():
        for node, counts in nodes.items():
            used[node] = used.get(node, 0) + counts.nbytes
            limits[node] = counts.limit
    cells = {
        "memory of all tables": [format_size(each) for each in used.values()],
        "limit": [format_size(each) for each in limits.values()],
        "used": [f"{used[node] / limit:.1%}" for node, limit in limits.items()],
    }
    yield ListColumn("node", [*used])
    for name, shown in cells.items():
        yield ListColumn(name, shown, is_number=True)
