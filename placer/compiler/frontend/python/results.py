"""The names of a recorded op's results and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placer.compiler.frontend.entries.op_kinds import CALL
from placer.compiler.graph.graph import Op


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list of one item."""
    return value if isinstance(value, list) else [value]


def one_or_list(values: Sequence[Any]) -> Any:
    """Return a single value without the list, and several as a list."""
    return list(values) if len(values) > 1 else values[0]


def result_names(
    name: str, kind: str, written: Mapping[str, Any], ops: Sequence[Op]
) -> list[str]:
    """Return the names of an op's results.

    Args:
        name: The name of the op.
        kind: The kind of the op.
        written: The op's entry without its name and kind.
        ops: The ops of the graph that the entry became.
    """
    out = written.get("out")
    if out is not None and not (kind == CALL and isinstance(out, str)):
        # An item is a name, or a mapping from names to types.
        items = (item if isinstance(item, Mapping) else [item] for item in as_list(out))
        return [name for item in items for name in item]
    values = [value.name for op in ops for value in op.results]
    return [name] if name in values else [value.name for value in ops[-1].results]


def parameter_names(
    name: str, written: Mapping[str, Any], ops: Sequence[Op]
) -> dict[str, str]:
    """Return the names of an op's parameters, including shared ones, by their keys."""
    own = (op.name for op in ops if op.kind in ("parameter", "sparse_table"))
    names = {each.removeprefix(f"{name}."): each for each in own if each != name}
    shared = written.get("params") or {}
    return names | {key: of for key, of in shared.items() if isinstance(of, str)}
