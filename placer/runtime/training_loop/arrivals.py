"""Decides how far all nodes can train with the rows of a Python stream that have arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from placer.errors import DataError
from placer.plan.settings.data.source import Data
from placer.system.listed import list_names

Report = Sequence[tuple[int, int, bool]]
"""The rows that have arrived on a node: a lane, the number of parts of batches since the start of
the run, and whether no further rows follow."""


class Arrivals(NamedTuple):
    """The rows that have arrived on all nodes.

    Attributes:
        batches: the number of batches since the start of the run.
        have_ended: whether no further batch follows.
        slowest: of the lanes that go on, that with the fewest rows, and a node that has read the
            fewest of them; of all lanes if all have ended.
        has_failed: whether a lane of some node has failed.
        error: the error if some lanes have ended before `batches + 1`, and others have not.
    """

    batches: int
    have_ended: bool
    slowest: tuple[int, str]
    has_failed: bool = False
    error: DataError | None = None


def combine(data: Data, reports: Mapping[str, Report]) -> Arrivals:
    """Combine the reports of all nodes. Nodes that read the same lane may have read ahead
    differently.

    >>> data = Data("python:clicks:rows")
    >>> combine(data, {"a": [(0, 3, False)], "b": [(0, 2, False), (1, 4, True)]})
    Arrivals(batches=2, have_ended=False, slowest=(0, 'b'), has_failed=False, error=None)
    >>> combine(data, {"a": [(0, 4, True)], "b": [(1, 4, True)]}).have_ended
    True
    >>> combine(data, {"a": [(0, 2, True), (1, 2, False)]}).slowest
    (1, 'a')
    """
    parts: dict[int, int] = {}
    going_on: set[int] = set()
    for report in reports.values():
        for lane, count, has_ended in report:
            parts[lane] = min(count, parts.get(lane, count))
            if not has_ended:
                going_on.add(lane)
    least = min(parts.values())
    _, _, lane, node = min(
        (has_ended, count, lane, node)
        for node, report in reports.items()
        for lane, count, has_ended in report
    )
    slowest = lane, node
    ended = sorted(
        n for n, count in parts.items() if count == least and n not in going_on
    )
    more = sorted(n for n, count in parts.items() if count > least)
    if ended and more:
        names = list_names([str(lane) for lane in ended], 5)
        have = f"lane {names} has" if len(ended) == 1 else f"lanes {names} have"
        error = DataError(
            f"{data.source}: {have} ended, but lane {more[0]} has more rows",
            hint="a lane without rows must wait for them; a stream ends if no lane fills its"
            " part of a batch",
        )
        return Arrivals(least, have_ended=False, slowest=slowest, error=error)
    return Arrivals(least, len(ended) == len(parts), slowest)
