"""Ids of nodes and devices: None if a place has no ids, `*` for all ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from placer.errors import nearest
from placer.place.node_kinds import NodeId

Ids = tuple[int, ...] | Literal["*"] | None

# A range is stored as a tuple of ids, so the largest id limits how much memory a short
# text can allocate.
MAX_ID = 99_999


def format_ids(ids: Sequence[int]) -> str:
    """Return increasing ids as a list of ranges: (0, 1, 2, 5) becomes `0-2,5`."""
    ranges: list[tuple[int, int]] = []
    for number in ids:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def ids_suffix(ids: Ids) -> str:
    """Return the text after a name for these ids: ``, `:*` or `:0-2,5`."""
    if ids is None:
        return ""
    return f":{ids}" if ids == "*" else f":{format_ids(ids)}"


def format_nodes(nodes: Iterable[str]) -> str:
    """Return the names of nodes, grouped by kind and by the threads of a process.

    >>> format_nodes(["worker:0", "worker:1", "worker:2", "ps:0"])
    'worker:0-2, ps:0'
    >>> format_nodes(["worker:0.0", "worker:0.1", "worker:1.0", "worker:1.1"])
    'worker:0-1.0-1'
    >>> format_nodes(["worker:0.0", "worker:0.1", "worker:1.0"])
    'worker:0.0-1, worker:1.0'
    """
    threads: dict[tuple[str, int], list[int]] = {}
    for node in map(NodeId, nodes):
        own = threads.setdefault((node.kind, node.number), [])
        if node.thread is not None:
            own.append(node.thread)
    groups: dict[tuple[str, str], list[int]] = {}
    for (kind, number), own in threads.items():
        groups.setdefault((kind, format_ids(sorted(own))), []).append(number)
    return ", ".join(
        f"{kind}:{format_ids(sorted(numbers))}" + (f".{own}" if own else "")
        for (kind, own), numbers in groups.items()
    )


def node_hint(name: str, nodes: Iterable[str]) -> str:
    """Return a hint for an unknown node: the nearest name, and all nodes.

    >>> node_hint("worker:7", ["worker:0", "worker:1", "ps:0"])
    "did you mean 'worker:1'? The nodes are worker:0-1, ps:0"
    """
    nodes = tuple(nodes)
    close = nearest(name, nodes)
    meant = "" if close is None else f"did you mean '{close}'? "
    verb = "The nodes are" if meant else "the nodes are"
    return f"{meant}{verb} {format_nodes(nodes)}"
