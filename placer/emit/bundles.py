"""Values that go together as one Python value: the parameters of a table, and their
gradients, are a NamedTuple with a field for each layer.

    Fc = namedtuple("Fc", "w b")


    class Dense(NamedTuple):
        h1: Fc  # w float32[64, 128], b float32[128]
        logits: Fc  # w float32[128, 10], b float32[10]

A value of a bundle is written `p.h1.w`, all values of a layer `*p.h1`, and the whole `p`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from placer.emit.code import add_comment, format_call, literal
from placer.emit.names import Names
from placer.graph.graph import Graph

Stars = dict[str, tuple[str, tuple[str, ...]]]
"""Starred arguments and what they stand for, by the first argument of that."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A field of a bundle: the parameters of one layer, in a namedtuple of class `kind`;
    or one parameter, without `kind`."""

    name: str
    kind: str | None
    keys: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """The NamedTuple class of a table; `members` are its parameters, in order."""

    name: str
    table: str
    layers: tuple[Layer, ...]

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(member for layer in self.layers for member in layer.members)

    def fields(self, variable: str) -> dict[str, str]:
        """The Python expression of each member, in a variable of this class."""
        return {
            member: ".".join([variable, layer.name, *([key] if layer.kind else [])])
            for layer in self.layers
            for member, key in zip(layer.members, layer.keys or ("",), strict=True)
        }

    def stars(self, variable: str) -> Stars:
        """What `collapse` needs to know of a variable of this class."""
        fields = self.fields(variable)
        return stars_of(
            (f"*{variable}.{layer.name}", [fields[member] for member in layer.members])
            for layer in self.layers
            if len(layer.members) > 1
        )

    def arguments(
        self, values: Mapping[str, str], stars: Stars | None = None
    ) -> list[str]:
        """The arguments of the class, from the expression of each member."""
        fields = []
        for layer in self.layers:
            inner = collapse([values[m] for m in layer.members], stars or {})
            value = f"{layer.kind}({', '.join(inner)})" if layer.kind else inner[0]
            fields.append(f"{layer.name}={value}")
        return fields


class Bundles:
    """The bundles of one program, and the lines that define their classes."""

    def __init__(self, graph: Graph, names: Names) -> None:
        self._graph = graph
        self._names = names
        self._kinds: dict[tuple[str, tuple[str, ...]], str] = {}
        self._types: dict[str, str] = {}
        self.of_table: dict[str, Bundle] = {}
        self.of_member: dict[str, Bundle] = {}

    def add(self, table: str, members: Mapping[str, str]) -> Bundle:
        """A bundle for the members of a table, whose types are given in words."""
        self._types.update(members)
        name = self._names.new_name(_camel(table))
        fields = Names.of_fields()
        layers = []
        for layer, keys in _layers(members):
            parameters = tuple(f"{layer}.{key}" if key else layer for key in keys)
            kind = self._kind(layer, keys) if keys != ("",) else None
            field = fields.new_name(_identifier(layer))
            layers.append(Layer(field, kind, _keys(keys) if kind else (), parameters))
        bundle = self.of_table[table] = Bundle(name, table, tuple(layers))
        self.of_member.update((member, bundle) for member in members)
        return bundle

    def _kind(self, layer: str, keys: tuple[str, ...]) -> str:
        op = self._graph.producers.get(layer)
        kind = layer if op is None else op.kind
        found = self._kinds.get((kind, keys))
        if found is None:
            found = self._kinds[kind, keys] = self._names.new_name(_camel(kind))
        return found

    @property
    def imports(self) -> list[str]:
        lines = ["from collections import namedtuple"] if self._kinds else []
        return [*lines, "from typing import NamedTuple"] if self.of_table else lines

    @property
    def lines(self) -> list[str]:
        """The definitions of the classes."""
        lines: list[str] = []
        for (_, keys), name in self._kinds.items():
            fields = [literal(name), literal(" ".join(_keys(keys)))]
            lines += format_call([name], "namedtuple", fields, 0)
        for bundle in self.of_table.values():
            lines += [
                "",
                "",
                f'class {bundle.name}(NamedTuple):  # table "{bundle.table}"',
            ]
            for layer in bundle.layers:
                kind = layer.kind or "object"
                lines += add_comment(
                    [f"    {layer.name}: {kind}"], self._described(layer)
                )
        return lines

    def _described(self, layer: Layer) -> str:
        """The types of a layer's parameters: "w float32[4, 2], b float32[2]"."""
        keys = layer.keys or ("",)
        typed = [self._types[member] for member in layer.members]
        runs = [
            (kind, [key for key, _ in run])
            for kind, run in groupby(zip(keys, typed, strict=True), key=itemgetter(1))
        ]
        return ", ".join(f"{', '.join(keys)} {kind}".strip() for kind, keys in runs)


def stars_of(runs: Iterable[tuple[str, Sequence[str]]]) -> Stars:
    """Starred arguments, such as `*p.h1`, each with the arguments that it stands for."""
    return {run[0]: (star, tuple(run)) for star, run in runs}


def collapse(expressions: Sequence[str], *stars: Stars) -> list[str]:
    """The same arguments, with `*p.h1` for all values of a layer."""
    out, i = [], 0
    while i < len(expressions):
        for known in stars:
            star, run = known.get(expressions[i], ("", ()))
            if run and tuple(expressions[i : i + len(run)]) == run:
                out.append(star)
                i += len(run)
                break
        else:
            out.append(expressions[i])
            i += 1
    return out


def _layers(members: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The members in runs of one layer each: its name, and their keys in it."""
    runs: list[tuple[str, list[str]]] = []
    for member in members:
        layer, dot, key = member.partition(".")
        if not dot:
            runs.append((member, [""]))
        elif runs and runs[-1][0] == layer and runs[-1][1] != [""]:
            runs[-1][1].append(key)
        else:
            runs.append((layer, [key]))
    for layer, keys in runs:
        yield layer, tuple(keys)


def _keys(keys: Sequence[str]) -> tuple[str, ...]:
    fields = Names.of_fields()
    return tuple(fields.new_name(_identifier(key)) for key in keys)


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name).lstrip("_") or "value"


def _camel(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+|_", name)
    return "".join(word[:1].upper() + word[1:] for word in words) or "Parameters"
