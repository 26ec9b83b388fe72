"""What a recorded op has made: its results and its parameters, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placer.graph.graph import Op
from placer.spec.op_kinds import CALL


def several(value: Any) -> list[Any]:
    """The items of a list, or the one that stands without it."""
    return value if isinstance(value, list) else [value]


def results(
    name: str, kind: str, written: Mapping[str, Any], ops: Sequence[Op]
) -> list[str]:
    """The names of an op's results."""
    out = written.get("out")
    if out is not None and not (kind == CALL and isinstance(out, str)):
        return [each for item in several(out) for each in _several_keys(item)]
    made = [value.name for op in ops for value in op.results]
    return [name] if name in made else [value.name for value in ops[-1].results]


def _several_keys(item: Any) -> list[str]:
    """A name, or those of a mapping from name to type."""
    return list(item) if isinstance(item, Mapping) else [item]


def parameters(
    name: str, written: Mapping[str, Any], ops: Sequence[Op]
) -> dict[str, str]:
    """The names of an op's parameters, own and shared, by the op's words for them."""
    own = (op.name for op in ops if op.kind == "parameter")
    found = {each.removeprefix(f"{name}."): each for each in own if each != name}
    shared = written.get("params") or {}
    return found | {key: of for key, of in shared.items() if isinstance(of, str)}
