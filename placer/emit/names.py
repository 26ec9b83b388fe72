"""Python names for the values of a graph: legal, unique, and easy to recognize."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from placer.graph.kinds import CONVERSIONS

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
RESERVED = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
    | {"annotations", "count", "evaluate", "functools", "jax", "node", "ops"}
    | {"runtime", "step"}
)


CONVERTED = frozenset(CONVERSIONS.values())
"""What a conversion adds to a value's name; where it has come to, it is the value."""


class Names:
    """One program's names. A value keeps its name wherever it appears.

    `modules` are those of the spec that the program imports: each by its own name, or by
    one like it where the program has that name itself. `h1.w` is `h1_w`, its gradient
    `d_h1_w`, a residual `h1_res`.
    """

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._taken: set[str] = set(RESERVED)
        self._names: dict[str, str] = {}
        self.modules = {module: self.fresh(module) for module in modules}

    def of(self, value: str) -> str:
        found = self._names.get(value)
        if found is None:
            found = self._names[value] = self.fresh(_readable(value))
        return found

    def alias(self, value: str, name: str) -> None:
        """Let a value go by a name that is there already."""
        self._names[value] = name

    def fresh(self, wish: str) -> str:
        """`wish`, or the first of `wish_2`, `wish_3`, … that is free."""
        assert _LEGAL.match(wish), wish
        name, i = wish, 2
        while name in self._taken:
            name, i = f"{wish}_{i}", i + 1
        self._taken.add(name)
        return name


def _readable(value: str) -> str:
    parts = value.split(".")
    parts = [parts[0], *(part for part in parts[1:] if part not in CONVERTED)]
    if "grad" in parts[1:]:
        at = parts.index("grad", 1)
        parts = ["d", *parts[:at], *parts[at + 1 :]]
    return "_".join(parts)
