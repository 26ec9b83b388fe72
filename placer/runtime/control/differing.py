"""Formats values that differ between nodes, for error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from placer.system.listed import list_names

T = TypeVar("T")


def nodes_by_value(values: Mapping[str, T]) -> dict[T, list[str]]:
    """Group nodes by value, in the order in which the values first occur."""
    nodes: dict[T, list[str]] = {}
    for node, value in values.items():
        nodes.setdefault(value, []).append(node)
    return nodes


def list_nodes(nodes: Sequence[str]) -> str:
    """Return the names of up to four nodes as text; of more nodes, three and a count."""
    return list_names(nodes, 3 if len(nodes) > 4 else None)


def list_values(values: Mapping[str, object]) -> str:
    """Return each value with its nodes, such as `5 on worker:0; 7 on worker:1`."""
    return "; ".join(_values(values))


def _values(values: Mapping[str, object]) -> Iterable[str]:
    for value, nodes in nodes_by_value(values).items():
        yield f"{value} on {list_nodes(nodes)}"
