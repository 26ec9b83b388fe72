"""Whether the nodes that read a source read the same rows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

from placer.build.plan import Data, Plan
from placer.channel.protocol import Channel, Key
from placer.errors import RunError
from placer.readers import Digests, Rows
from placer.runtime.run.barrier import ROWS, dump, heard_of
from placer.runtime.run.batches import inputs_of

TRAINING: Final = "training"
EVALUATION: Final = "evaluation"

_HINT = (
    "a source must give the same rows in every process: sort what comes from a set or a"
    " folder, and seed what is random by the row's number"
)


def compare_rows(plan: Plan, channel: Channel, phase: str, rows: Rows | None) -> None:
    """Let the control node compare what each node has read for `phase`, TRAINING or
    EVALUATION. All nodes have agreed on the number of rows. RunError on the control
    node, which the others hear it from."""
    training = phase == TRAINING
    readers = [
        node.name
        for node in plan.nodes
        if inputs_of(node.step if training else node.evaluation)
    ]
    if len(readers) < 2:
        return
    key = Key(ROWS, 0 if training else 1)
    own = None if rows is None else rows.digests()
    if channel.node != plan.control:
        if own is not None:
            channel.send(plan.control, key, [dump(asdict(own))])
        return
    found = {
        name: own
        if name == channel.node and own is not None
        else heard_of(channel, name, key, Digests)
        for name in readers
    }
    data = plan.train if training else plan.evaluation
    assert data is not None
    check_same(data, phase, found)


def check_same(data: Data, phase: str, found: Mapping[str, Digests]) -> None:
    """RunError where digests differ, which are given by node; it names the first row
    and its column, where one of the rows that are compared one by one differs."""
    for where, column, values in _compared(found):
        nodes: dict[int, list[str]] = {}
        for node, value in values.items():
            nodes.setdefault(value, []).append(node)
        if len(nodes) > 1:
            named = (data.columns or {}).get(column, column)
            listed = named if isinstance(named, str) else ", ".join(named)
            one, *others = (_few(each) for each in nodes.values())
            raise RunError(
                f"the nodes do not read the same {phase} data: {data.source}: {where}"
                f" column '{listed}' is not on {' nor on '.join(others)} what it is on"
                f" {one}",
                hint=_HINT,
            )


def _compared(
    found: Mapping[str, Digests],
) -> Iterator[tuple[str, str, dict[str, int]]]:
    """What is compared: where in the source, the input, and the digest on each node.
    The first rows come first, and whole columns last."""
    inputs = {name: None for each in found.values() for name in each.columns}
    for at, row in enumerate(next(iter(found.values())).rows):
        for name in inputs:
            yield (
                f"row {row} of",
                name,
                {n: d.columns[name][at] for n, d in found.items() if name in d.columns},
            )
    for name in {name: None for each in found.values() for name in each.whole}:
        # The rows that were compared one by one are the same, or are on one node alone.
        yield (
            "some row of",
            name,
            {n: d.whole[name] for n, d in found.items() if name in d.whole},
        )


def _few(nodes: list[str]) -> str:
    """Some of the nodes, by name."""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 4 else ""
    return ", ".join(nodes[:3] if more else nodes) + more
