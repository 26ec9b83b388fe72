"""Values that belong together as one Python value: the parameters of a table, and their
gradients, are a NamedTuple with a field for each layer.

    Fc = namedtuple("Fc", "w b")


    class Dense(NamedTuple):
        h1: Fc  # w float32[64, 128], b float32[128]
        logits: Fc  # w float32[128, 10], b float32[10]

A value of a bundle is written `p.h1.w`, all values of a layer `*p.h1`, and the whole `p`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from placer.compiler.emit.code import Call, Expression, add_comment, literal
from placer.compiler.emit.names import RESERVED_FOR_FIELDS, Names
from placer.compiler.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Layer:
    """A field of a bundle: the parameters of one layer, in a namedtuple of class `kind`
    with a key for each; or one parameter, without `kind`."""

    name: str
    members: tuple[str, ...]
    kind: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bundle:
    """The NamedTuple class of a table, with the types of its parameters in words."""

    name: str
    table: str
    layers: tuple[Layer, ...]
    types: Mapping[str, str]

    @property
    def members(self) -> tuple[str, ...]:
        """The parameters of the table, in order."""
        return tuple(self.types)

    def fields(self, variable: str) -> dict[str, Expression]:
        """Return the expression of each member, in a variable of this class."""
        fields = {}
        for layer in self.layers:
            path = f"{variable}.{layer.name}"
            paths = [f"{path}.{key}" for key in layer.keys] or [path]
            for member, text in zip(layer.members, paths, strict=True):
                fields[member] = Expression(text, variable)
        return fields

    def lines(self) -> list[str]:
        """Return the definition of the class."""
        head = f'class {self.name}(NamedTuple):  # table "{self.table}"'
        fields = []
        for layer in self.layers:
            typed = dict(zip(layer.members, layer.keys or ("",), strict=True))
            parts = [
                f"{', '.join(typed[member] for member in members)} {kind}".strip()
                for kind, members in groupby(layer.members, key=self.types.__getitem__)
            ]
            field = f"    {layer.name}: {layer.kind or 'object'}"
            fields += add_comment([field], ", ".join(parts))
        return ["", "", head, *fields]


class Bundles:
    """The bundles of one program, by table and by parameter."""

    def __init__(self, graph: Graph, names: Names) -> None:
        self._graph = graph
        self._names = names
        self._kinds: dict[tuple[str, tuple[str, ...]], str] = {}
        self.of_table: dict[str, Bundle] = {}
        self.of_member: dict[str, Bundle] = {}

    def add(
        self, table: str, types: Mapping[str, str], written: Mapping[str, str]
    ) -> None:
        """Add a bundle for the parameters of a table, whose types are given in words.

        `written` has the names of those whose fields are not called as they are.
        """
        name = self._names.new_name(_class_name(table))
        fields = Names(reserved=RESERVED_FOR_FIELDS)
        layers = []
        named = {member: written.get(member, member) for member in types}
        for (layer, dot), run in groupby(types, lambda m: named[m].partition(".")[:2]):
            members = tuple(run)
            field = fields.new_name(_identifier(layer))
            if not dot:
                layers.append(Layer(field, members))
                continue
            keys = _field_names(named[member].partition(".")[2] for member in members)
            layers.append(Layer(field, members, self._kind(layer, keys), keys))
        bundle = self.of_table[table] = Bundle(name, table, tuple(layers), types)
        self.of_member.update(dict.fromkeys(types, bundle))

    def _kind(self, layer: str, keys: tuple[str, ...]) -> str:
        """Return the class of a layer, which is named after its op."""
        op = self._graph.producers.get(layer)
        kind = layer if op is None else op.kind
        if (kind, keys) not in self._kinds:
            self._kinds[kind, keys] = self._names.new_name(_class_name(kind))
        return self._kinds[kind, keys]

    @property
    def imports(self) -> list[str]:
        """The imports that the classes need."""
        lines = ["from collections import namedtuple"] if self._kinds else []
        return [*lines, "from typing import NamedTuple"] if self.of_table else lines

    def lines(self) -> list[str]:
        """Return the definitions of the classes."""
        lines = []
        for (_, keys), name in self._kinds.items():
            fields = [literal(name), literal(" ".join(keys))]
            lines += [each.text for each in Call("namedtuple", fields, [name]).lines(0)]
        for bundle in self.of_table.values():
            lines += bundle.lines()
        return lines


def _field_names(keys: Iterable[str]) -> tuple[str, ...]:
    names = Names(reserved=RESERVED_FOR_FIELDS)
    return tuple(names.new_name(_identifier(key)) for key in keys)


def _identifier(name: str) -> str:
    """Return a name as a field of a NamedTuple, which does not begin with `_`."""
    text = re.sub(r"\W", "_", name).lstrip("_")
    return text if text.isidentifier() else f"value{text}"


def _class_name(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+|_", name)
    text = "".join(word[:1].upper() + word[1:] for word in words)
    return text if text.isidentifier() else f"Parameters{text}"
