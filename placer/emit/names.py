"""Python names for the values of a graph: valid, unique and easy to recognize."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Mapping

from placer.graph.kinds import CONVERSION_KINDS

_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
RESERVED = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
    | {"annotations", "count", "evaluate", "functools", "jax", "node", "ops"}
    | {"NamedTuple", "namedtuple", "runtime", "step"}
)


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

    def new_name(self, proposal: str) -> str:
        """Return the proposal, or if it is used, the first unused name of `proposal_2`,
        `proposal_3` and so on."""
        assert _LEGAL.match(proposal), proposal
        name, i = proposal, 2
        while name in self._used:
            name, i = f"{proposal}_{i}", i + 1
        self._used.add(name)
        return name

    def release(self, names: Iterable[str]) -> None:
        """Allow names to be used again."""
        self._used.difference_update(names)

    @classmethod
    def of_fields(cls) -> Names:
        """Return the names of the fields of one namedtuple, where only keywords and the
        methods of tuples are reserved."""
        names = cls()
        names._used = {*keyword.kwlist, *keyword.softkwlist, "count", "index"}
        return names


class Scope:
    """The Python expressions of values in one hook: variables, their fields, numbers."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._expressions: dict[str, str] = {}
        self._values: dict[str, list[str]] = {}
        self._variables: list[str] = []

    def expression_of(self, value: str) -> str:
        """Return the expression of a value."""
        return self._expressions.get(value) or self._names.name_of(value)

    def bind(self, value: str, expression: str) -> None:
        """Set the expression of a value."""
        self._expressions[value] = expression
        self._values.setdefault(expression, []).append(value)

    def values_of(self, expression: str) -> list[str]:
        """Return the values that are bound to an expression."""
        values = self._values.get(expression, ())
        return [v for v in values if self._expressions[v] == expression]

    def new_variable(self, proposal: str) -> str:
        """Return a variable that is unused in this hook, the proposal if possible."""
        variable = self._names.new_name(proposal)
        self._variables.append(variable)
        return variable

    def close(self) -> None:
        """Allow other hooks to use the same variables."""
        self._names.release(self._variables)

    @property
    def modules(self) -> Mapping[str, str]:
        """The names of the spec's modules."""
        return self._names.modules


def root(expression: str) -> str | None:
    """Return the variable of an expression; None for a number.

    >>> root("p.h1.w"), root("g_h1[0]"), root("1.0")
    ('p', 'g_h1', None)
    """
    name = re.split(r"[.\[]", expression, maxsplit=1)[0]
    return name if name.isidentifier() else None


def _readable(value: str) -> str:
    parts = value.split(".")
    # In the program of one node, a converted value has the name of the value itself.
    parts = [parts[0], *(part for part in parts[1:] if part not in CONVERSION_KINDS)]
    if "grad" in parts[1:]:
        at = parts.index("grad", 1)
        parts = ["d", *parts[:at], *parts[at + 1 :]]
    return "_".join(parts)
