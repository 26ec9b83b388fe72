"""NamedTuples for the parameters of a table and for their gradients.

A program defines a class for each table, with a field for each layer:

    Fc = namedtuple("Fc", "w b")


    class Dense(NamedTuple):
        h1: Fc  # w float32[64, 128], b float32[128]
        logits: Fc  # w float32[128, 10], b float32[10]

`p.h1.w` is one value of the bundle `p`; `*p.h1` are all values of a layer.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

from placer.compiler.emit.code import Call, Expression, add_comment, literal
from placer.compiler.emit.names import (
    RESERVED_FOR_FIELDS,
    SHORTENED,
    Names,
    has_long_part,
    shorten_parts,
)

Role: TypeAlias = Literal["p", "state", "frozen"]
"""The variable of a table: `p` if it is trained, `state` if each step stores it (running
averages), `frozen` otherwise."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A field of a bundle: the parameters of one layer, or one parameter without a layer.

    Attributes:
        name: the name of the field.
        members: the parameters.
        kind: the namedtuple class of the layer; empty for a parameter without a layer.
        keys: the field of each parameter in the namedtuple.
    """

    name: str
    members: tuple[str, ...]
    kind: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bundle:
    """The NamedTuple class of a table.

    Attributes:
        layers: the fields of the class.
        types: the type of each parameter, such as `float32[64, 128]`.
        variable: the variable of the parameters, such as `p` or `p0`.
        number: the number in the variables of the table, such as `0` in `p0` and `g0`;
            empty if they have none.
    """

    name: str
    table: str
    layers: tuple[Layer, ...]
    types: Mapping[str, str]
    variable: str
    number: str

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.types)

    def fields(self, variable: str) -> dict[str, Expression]:
        """Return the expression of each member of a variable of this class."""
        fields = {}
        for layer in self.layers:
            path = f"{variable}.{layer.name}"
            paths = [f"{path}.{key}" for key in layer.keys] or [path]
            for member, text in zip(layer.members, paths, strict=True):
                fields[member] = Expression(text, variable)
        return fields

    def lines(self) -> list[str]:

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


class Contents(NamedTuple):
    """The parameters of one bundle.

    Attributes:
        key: the key of the bundle in `Bundles.of_table`.
        table: the name of the table.
        role: the variable of the parameters, without a number.
        types: the type of each parameter, such as `float32[64, 128]`.
        written: the parameter that a local copy is named after.
    """

    key: str
    table: str
    role: Role
    types: Mapping[str, str]
    written: Mapping[str, str]

    def named_layers(self) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """Yield the name, the parameters and the keys of each layer.

        A parameter without a layer has no keys.
        """
        named = {member: self.written.get(member, member) for member in self.types}
        parts = groupby(self.types, lambda m: named[m].partition(".")[:2])
        for (layer, dot), run in parts:
            members = tuple(run)
            if not dot:
                for member in members:
                    yield layer, (member,), ()
                continue
            names = Names(reserved=RESERVED_FOR_FIELDS)
            keys = (named[member].partition(".")[2] for member in members)
            yield layer, members, tuple(names.new_name(_identifier(k)) for k in keys)


class Bundles:
    """The bundles of one program, by table and by parameter.

    Args:
        contents: the parameters of each bundle, in the order of the classes.
        names: the names of the program.
        kinds: the kind of each layer.
        numbered: the roles for which variables have the number of their table.

    Attributes:
        of_table: each bundle by its key.
        of_member: the bundle of each parameter.
    """

    def __init__(
        self,
        contents: Sequence[Contents],
        names: Names,
        kinds: Mapping[str, str],
        numbered: Container[str],
    ) -> None:
        self.of_table: dict[str, Bundle] = {}
        self.of_member: dict[str, Bundle] = {}
        found = [
            [
                (layer, members, keys, f"{kinds.get(layer, 'layer')}{_of_state(each)}")
                for layer, members, keys in each.named_layers()
            ]
            for each in contents
        ]
        self._kinds = _name_kinds(
            dict.fromkeys(
                (kind, keys) for layers in found for *_, keys, kind in layers
            ),
            names,
        )
        numbers = _numbers(contents, numbered)
        class_names = _table_classes(contents)
        for each, class_name, number, layers in zip(
            contents, class_names, numbers, found, strict=True
        ):
            if any(has_long_part(member) for member in each.types):
                names.conventions.add(SHORTENED)
            fields = Names(reserved=RESERVED_FOR_FIELDS)
            bundle = Bundle(
                names.new_name(class_name),
                each.table,
                tuple(
                    Layer(
                        fields.new_name(_identifier(layer)),
                        members,
                        self._kinds[kind, keys] if keys else "",
                        keys,
                    )
                    for layer, members, keys, kind in layers
                ),
                each.types,
                f"{each.role}{number}",
                number,
            )
            self.of_table[each.key] = bundle
            self.of_member.update(dict.fromkeys(each.types, bundle))

    @property
    def imports(self) -> list[str]:

        lines = ["from collections import namedtuple"] if self._kinds else []
        return [*lines, "from typing import NamedTuple"] if self.of_table else lines

    def lines(self) -> list[str]:

        lines = []
        for (_, keys), name in self._kinds.items():
            fields = [literal(name), literal(" ".join(keys))]
            lines += [each.text for each in Call("namedtuple", fields, [name]).lines(0)]
        for bundle in self.of_table.values():
            lines += bundle.lines()
        return lines


def _of_state(contents: Contents) -> str:
    return "_state" if contents.role == "state" else ""


def _name_kinds(
    layers: Iterable[tuple[str, tuple[str, ...]]], names: Names
) -> dict[tuple[str, tuple[str, ...]], str]:
    """Return class names by kind and keys: `Fc`, or for a part of a layer `FcWBlock1`."""
    keys_of: dict[str, list[tuple[str, ...]]] = {}
    kinds = [(kind, keys) for kind, keys in layers if keys]
    for kind, keys in kinds:
        keys_of.setdefault(kind, []).append(keys)
    named = {}
    for kind, keys in kinds:
        others = {each for found in keys_of[kind] for each in found}
        is_whole = len(keys_of[kind]) == 1 or {*map(_whole, others)} == {*keys}
        suffix = f"_{'_'.join(keys)}" if len(keys) < 3 else "_part"
        suffix = "" if is_whole else suffix
        named[kind, keys] = names.new_name(_class_name(f"{kind}{suffix}"))
    return named


def _whole(key: str) -> str:
    """Return the key of a parameter, given the key of one of its blocks."""
    return re.sub(r"_block\d+$", "", key)


def _numbers(contents: Sequence[Contents], numbered: Container[str]) -> list[str]:
    """Return the number of each table: the number in its name, or else its position."""
    numbers = []
    for each in contents:
        same = dict.fromkeys(c.table for c in contents if c.role == each.role)
        own = [re.fullmatch(r"[a-z]+(\d+)", table) for table in same]
        position = [*same].index(each.table)
        match = own[position]
        number = match[1] if match and all(own) else str(position)
        numbers.append(number if each.role in numbered else "")
    return numbers


def _table_classes(contents: Sequence[Contents]) -> list[str]:
    """Return the name of each class, with devices only where names would be equal."""
    short = [re.sub(r"_[a-z]+:[^ ]*", "", each.key) for each in contents]
    return [
        _class_name(name if short.count(name) == 1 else each.key.replace("-", "_to_"))
        for name, each in zip(short, contents, strict=True)
    ]


def _identifier(name: str) -> str:
    """Return a name as a field of a NamedTuple, which cannot begin with `_`."""
    text = re.sub(r"\W", "_", shorten_parts(name)).lstrip("_")
    return text if text.isidentifier() else f"value{text}"


def _class_name(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+|_", name)
    text = "".join(word[:1].upper() + word[1:] for word in words)
    return text if text.isidentifier() else f"Parameters{text}"
