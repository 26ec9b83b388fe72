"""The Python expression of each value in one hook and its functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placer.compiler.emit.bundles import Bundle
from placer.compiler.emit.code import Call, Expression
from placer.compiler.emit.names import Names

Held = dict[str, tuple[Bundle, Mapping[str, str]]]
"""The bundle of each variable, and the value of each member."""


@dataclass(frozen=True, slots=True)
class _Run:
    """An expression such as `*p.h1`, or `p` if `whole`, that stands for several arguments."""

    expression: Expression
    texts: tuple[str, ...]
    whole: bool


class Scope:
    """The expressions of values: variables, fields of variables, numbers.

    Attributes:
        names: the names of the hook.
        bundles: the bundle of each variable, and the value of each member.
        part: the number of the current part of the hook: a task, a loop, or the
            statements before a loop.
        parts: the part in which each variable was assigned.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.bundles: Held = {}
        self.part = 0
        self.parts: dict[str, int] = {}
        self._expressions: dict[str, Expression] = {}
        self._values: dict[str, list[str]] = {}
        self._runs: dict[str, list[_Run]] = {}

    def __getitem__(self, value: str) -> Expression:
        """Return the expression of a value; by default a variable with a new name."""
        found = self._expressions.get(value)
        if found is None:
            name = self.names.name_of(value)
            found = Expression(name, name)
            self.bind(value, found)
        return found

    def is_bound(self, value: str) -> bool:

        return value in self._expressions

    def text(self, value: str) -> str:

        return self[value].text

    def bind(self, value: str, expression: Expression) -> None:

        self._expressions[value] = expression
        self._values.setdefault(expression.text, []).append(value)

    def values_of(self, expression: Expression) -> list[str]:

        values = self._values.get(expression.text, ())
        return [value for value in values if self._expressions[value] == expression]

    def new_variable(self, proposal: str) -> str:
        """Return a new variable of the hook, named like the proposal if possible."""
        self.names.conventions.add(proposal)
        return self.names.new_name(proposal)

    # Bundles.

    def hold(self, variable: str, bundle: Bundle, values: Mapping[str, str]) -> None:
        """Bind the value of each member of a bundle to a field of a variable."""
        values = {member: values[member] for member in bundle.members}
        self.bundles[variable] = bundle, values
        fields = bundle.fields(variable)
        self._add_run(Expression(variable, variable), [*fields.values()], whole=True)
        for layer in bundle.layers:
            if len(layer.members) > 1:
                star = Expression(f"*{variable}.{layer.name}", variable)
                self._add_run(star, [fields[m] for m in layer.members], whole=False)
        for member, field in fields.items():
            self.bind(values[member], field)

    def bind_list(self, variable: str, values: Sequence[str]) -> None:
        """Bind values to the items of a variable that holds a list."""
        items = [Expression(f"{variable}[{i}]", variable) for i in range(len(values))]
        self._add_run(Expression(f"*{variable}", variable), items, whole=False)
        for value, item in zip(values, items, strict=True):
            self.bind(value, item)

    def _add_run(
        self, expression: Expression, items: Sequence[Expression], *, whole: bool
    ) -> None:
        run = _Run(expression, tuple(item.text for item in items), whole)
        runs = self._runs.setdefault(run.texts[0], [])
        if run not in runs:
            runs.append(run)

    def collapse(
        self, expressions: Sequence[Expression], *, whole: bool = False
    ) -> list[Expression]:
        """Return shorter arguments: `*p.h1` for all values of a layer, and if `whole`, `p`
        for all values of a bundle."""
        texts = tuple([expression.text for expression in expressions])
        if self._runs.keys().isdisjoint(texts):
            return [*expressions]
        collapsed, i = [], 0
        while i < len(texts):
            written, size = expressions[i], 1
            for run in self._runs.get(texts[i], ()):
                allowed = whole or not run.whole
                if allowed and texts[i : i + len(run.texts)] == run.texts:
                    written, size = run.expression, len(run.texts)
                    break
            collapsed.append(written)
            i += size
        return collapsed

    def grouped(self, values: Iterable[str]) -> list[tuple[Expression, list[str]]]:
        """Return an argument for each complete bundle and each other value.

        Each argument comes with its values.
        """
        given = dict.fromkeys(values)
        members: dict[str, list[str]] = {}
        for variable in {self[value].variable for value in given} & self.bundles.keys():
            held = [*self.bundles[variable][1].values()]
            if given.keys() >= {*held}:
                members |= dict.fromkeys(held, held)
        groups = {}
        for value in given:
            group = members.get(value, [value])
            variable = self[value].variable
            whole = Expression(variable, variable)
            groups[group[0]] = whole if value in members else self[value], group
        return [*groups.values()]

    def variable_of(self, bundle: Bundle, values: Sequence[str]) -> str | None:
        """Return the variable that holds a bundle of exactly these values, or None."""
        variable = self[values[0]].variable
        held = self.bundles.get(variable)
        if held is None or held[0] is not bundle or [*held[1].values()] != [*values]:
            return None
        return variable

    def construct(
        self, bundle: Bundle, values: Mapping[str, str], variable: str
    ) -> Call:
        """Return the statement that assigns a new bundle of these values to a variable."""
        arguments = []
        for layer in bundle.layers:
            items = self.collapse([self[values[member]] for member in layer.members])
            made = (
                Expression(layer.kind, items=tuple(items)) if layer.kind else items[0]
            )
            arguments.append(made.after(f"{layer.name}="))
        self.hold(variable, bundle, values)
        return Call(bundle.name, arguments, [variable])
