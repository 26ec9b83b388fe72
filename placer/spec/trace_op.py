"""An op of kind `trace`: what a function is called with, and the regions it is cut into."""

from __future__ import annotations

import json
from collections.abc import Mapping as Types
from typing import Any, NamedTuple

from placer.config.checks import shown
from placer.errors import Span
from placer.spec.decode import decode
from placer.spec.names import is_name, why_not
from placer.spec.problems import Problems
from placer.spec.schema import Region, TraceOp
from placer.spec.tree import Mapping, Node, Scalar, Sequence
from placer.spec.values import several
from placer.types import LARGEST, TensorType

TERMS = ("in", "param", "make", "value", "list", "tuple", "dict")
"""What an argument may be."""


class Part(NamedTuple):
    """A region as it is written."""

    place: Node | None
    operands: list[Scalar]
    outs: list[tuple[str, TensorType]]
    span: Span


def read_trace(node: Mapping, name: str, problems: Problems) -> dict[str, Any]:
    """The good fields of the op's mapping."""
    return decode(node, TraceOp, f"op '{name}' (trace)", problems)


def read_parts(
    section: Node | None, name: str, problems: Problems
) -> list[Part] | None:
    """The regions; None, told, when one is wrong."""
    if not isinstance(section, Sequence) or not section.items:
        if section is not None:
            message = "'regions' must list what the function is cut into"
            problems.add(message, section.span, "placer.trace writes it")
        return None
    found = [
        _part(item, f"regions[{number}] of op '{name}'", name, problems)
        for number, item in enumerate(section.items)
    ]
    good = [part for part in found if part is not None]
    return good if len(good) == len(found) else None


def _part(item: Node, where: str, name: str, problems: Problems) -> Part | None:
    good = decode(item, Region, where, problems)
    if not isinstance(item, Mapping) or "out" not in good:
        return None
    given = item.given("in")
    operands = several(given) if given is not None else []
    names = [each for each in operands if isinstance(each, Scalar)]
    outs = [_out(each, name, problems) for each in several(item.entries["out"])]
    typed = [out for out in outs if out is not None]
    if len(names) < len(operands) or len(typed) < len(outs) or not outs:
        if not outs:
            problems.add(f"{where} gives nothing", item.span)
        return None
    return Part(item.given("place"), names, typed, item.span)


def _out(item: Node, name: str, problems: Problems) -> tuple[str, TensorType] | None:
    """A result `name: type`: the op's own name, or one behind it and a dot."""
    if not isinstance(item, Mapping) or len(item.entries) != 1:
        message = f"a result is a name and its type, not {shown(item.value)}"
        problems.add(message, item.span, f'write {name}: "float32[batch, 64]"')
        return None
    ((key, kind),) = item
    last = key.removeprefix(f"{name}.")
    if key != name and (last == key or not is_name(last)):
        message, hint = why_not(key)
        own = f"{hint}; a result of a region is {name} or begins with {name}."
        problems.add(message, item.keys[key].span, own)
        return None
    if not isinstance(kind, Scalar):
        problems.add(f"a type is a text, not {shown(kind.value)}", kind.span)
        return None
    try:
        return key, TensorType.parse(kind.text, LARGEST)
    except ValueError as error:
        problems.add(str(error), kind.inside)
        return None


def arguments(
    args: Node, name: str, types: Types[str, TensorType], problems: Problems
) -> str | None:
    """The arguments as `placer.regions` reads them: types in place of the names of
    values; None, told, when one is wrong."""
    assert isinstance(args, Sequence)
    found = [_term(item, name, types, problems) for item in args.items]
    return None if None in found else json.dumps(found)


def _term(
    item: Node, name: str, types: Types[str, TensorType], problems: Problems
) -> dict[str, Any] | None:
    if not isinstance(item, Mapping) or [*item.entries] not in [[t] for t in TERMS]:
        message = f"an argument is one of {', '.join(TERMS)}, not {shown(item.value)}"
        problems.add(message, item.span, "write {in: x} for a value, {make: model}")
        return None
    ((key, said),) = item
    match key:
        case "in" | "param":
            of = f"{name}.{said.value}" if key == "param" else str(said.value)
            if of not in types:
                problems.add(f"op '{name}' has no '{said.value}'", said.span)
                return None
            return {key: str(types[of])}
        case "make":
            if not isinstance(said.value, str) or not is_name(said.value):
                message = (
                    f"'make' names what the file of fn has, not {shown(said.value)}"
                )
                problems.add(message, said.span)
                return None
            return {key: said.value}
        case "value" if isinstance(said, Scalar):
            return {key: said.value}
        case "dict" if isinstance(said, Mapping):
            inner = {k: _term(v, name, types, problems) for k, v in said}
            return None if None in inner.values() else {key: inner}
        case "list" | "tuple" if isinstance(said, Sequence):
            items = [_term(each, name, types, problems) for each in said.items]
            return None if None in items else {key: items}
    problems.add(f"'{key}' holds arguments, not {shown(said.value)}", said.span)
    return None
