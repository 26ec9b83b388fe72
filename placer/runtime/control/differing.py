"""Facts that should be the same on all nodes, as text for errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def nodes_by_value(values: Mapping[str, T]) -> dict[T, list[str]]:
    """Return the nodes that have each value, in the order of the first ones."""
    nodes: dict[T, list[str]] = {}
    for node, value in values.items():
        nodes.setdefault(value, []).append(node)
    return nodes


def list_nodes(nodes: Sequence[str]) -> str:
    """Return the names of at most four nodes as text, and the number of the others."""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 4 else ""
    return ", ".join(nodes[:3] if more else nodes) + more


def list_values(values: Mapping[str, object]) -> str:
    """Return which nodes have which value: `5 on worker:0; 7 on worker:1`."""
    return "; ".join(_values(values))


def _values(values: Mapping[str, object]) -> Iterable[str]:
    for value, nodes in nodes_by_value(values).items():
        yield f"{value} on {list_nodes(nodes)}"
