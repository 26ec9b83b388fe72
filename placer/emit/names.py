"""Python names for the values of a graph: valid, unique and easy to recognize."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from placer.graph.kinds import CONVERSION_KINDS

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
RESERVED = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
    | {"annotations", "count", "evaluate", "functools", "jax", "node", "ops"}
    | {"runtime", "step"}
)


CONVERSION_SUFFIXES = CONVERSION_KINDS
"""The suffixes that conversions add to a value's name.

Left out of Python names: in the program of one node, the converted value is the value.
"""


class Names:
    """The names of one program. A value has the same name in all of its functions.

    The value `h1.w` is called `h1_w`, its gradient `d_h1_w`, a residual `h1_res`.
    `modules` are the modules of the spec that the program imports. Each keeps its name,
    or gets a number after it if the program itself uses the name.
    """

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._used: set[str] = set(RESERVED)
        self._names: dict[str, str] = {}
        self.modules = {module: self.new_name(module) for module in modules}

    def name_of(self, value: str) -> str:
        """Return the name of a value; the first call chooses it."""
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = self.new_name(_readable(value))
        return name

    def alias(self, value: str, name: str) -> None:
        """Give a value the name of another value."""
        self._names[value] = name

    def new_name(self, wish: str) -> str:
        """Return `wish`, or the first of `wish_2`, `wish_3`, … that is unused."""
        assert _LEGAL.match(wish), wish
        name, i = wish, 2
        while name in self._used:
            name, i = f"{wish}_{i}", i + 1
        self._used.add(name)
        return name


def _readable(value: str) -> str:
    parts = value.split(".")
    parts = [parts[0], *(part for part in parts[1:] if part not in CONVERSION_SUFFIXES)]
    if "grad" in parts[1:]:
        at = parts.index("grad", 1)
        parts = ["d", *parts[:at], *parts[at + 1 :]]
    return "_".join(parts)
