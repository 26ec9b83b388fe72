"""Parses graphs line by line, in the form that `print_graph` writes.

This is 20 times as fast as the grammar (`grammar/graph.lark`), which also accepts other
white space and finds the position of a mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from msgspec import convert

from placer.compiler.graph.declared import attribute, is_declared
from placer.compiler.graph.graph import Graph, Op, Value
from placer.errors import OpError, PlacerError
from placer.ops.attributes import check_value
from placer.place import Cluster, Place
from placer.place.layouts.ranges import Flat
from placer.place.types import ResidualType, TensorType
from placer.plan.settings.training.initializers import Init, read_init
from placer.plan.settings.training.schedules import Rate, read_rate
from placer.plan.settings.training.transformations import Transformation
from placer.plan.settings.training.update_modes import Settings, from_text

RESERVED = {"true": True, "false": False, "none": None}
_READERS: Mapping[object, Callable[[Any], object]] = {
    Init: read_init,
    Rate: read_rate,
    Settings: from_text,
    Transformation: partial(convert, type=Transformation),
}
"""Types of attributes that are structs, with the functions that parse them."""

_NAME = "[A-Za-z_][A-Za-z0-9_.]*"
_TENSOR = r"[a-z]+[0-9]*\[[^\[\]]*\]"
_LAYOUT = r"[RSP](?:/[RSP])?|/[RSP]|F\[\d+/\d+(?:/whole)?\]"
_HEAD = re.compile(
    rf"graph @({_NAME}) (nodes\([^)]*\)) batch\((\d+)\)(?: evaluation\((\d+)\))?"
    r"(?: microbatches\((\d+)\))?(?: first_edge\((\d+)\))? \{"
)
_VALUE = re.compile(
    rf"%({_NAME}): (?:({_TENSOR})|\(((?:{_TENSOR}(?:, {_TENSOR})*)?)\))"
    rf"(?: ({_LAYOUT}))?(, | = )"
)
_CALL = re.compile(rf"({_NAME})\((%{_NAME}(?:, %{_NAME})*)?\)")
_END = re.compile(r"(?: @(/[^\s{}]++))?\s*(?:#.*)?")
_KEY = re.compile(rf"({_NAME}) = ")
_TERM = re.compile(
    r"(-?(?:(?:inf|nan)(?![A-Za-z0-9_.])|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?))"
    r'|("(?:[^"\\]|\\.)*")'
    r"|(/[a-z][^\s{}\]]*[^\s{}\],])"
    rf"|({_NAME})"
    r"|([\[{])"
)
_CLOSED = {"[": "]", "{": "}"}


class _UnfitError(Exception):
    """A line is not in the form that `print_graph` writes."""


def read_graph_lines(text: str) -> tuple[Graph, ...] | None:
    """Return the graphs of a text, or None if a line does not have the printed form or is
    invalid."""
    graphs = []
    lines = iter(text.split("\n"))
    try:
        for line in lines:
            if not line.strip():
                continue
            head = _fit(_HEAD.fullmatch(line))
            name, nodes, batch, evaluation, microbatches, first_edge = head.groups()
            ops = []
            for line in lines:
                if line == "}":
                    break
                ops.append(_read_op(line))
            else:
                return None
            graph = Graph(
                name,
                Cluster.parse(nodes),
                int(batch),
                tuple(ops),
                int(microbatches or 1),
                None if evaluation is None else int(evaluation),
                int(first_edge or 1),
            )
            graphs.append(graph)
    except (_UnfitError, ValueError, PlacerError, RecursionError):
        return None
    return tuple(graphs) or None


def _fit(match: re.Match[str] | None) -> re.Match[str]:
    if match is None:
        raise _UnfitError
    return match


def _read_op(line: str) -> Op:
    at = 2
    results = []
    if line.startswith("  %"):
        separator = ", "
        while separator == ", ":
            found = _fit(_VALUE.match(line, at))
            name, tensor, parts, layout, separator = found.groups()
            types = _tensor(tensor) if tensor else _residual(parts)
            results.append(make_value(name, types, layout))
            at = found.end()
    elif not line.startswith("  "):
        raise _UnfitError
    call = _fit(_CALL.match(line, at))
    kind, operands = call.groups()
    at = call.end()
    attrs: dict[str, Any] = {}
    if line.startswith(" {", at):
        attrs, at = _read_mapping(line, at + 2)
        if is_declared(kind):
            attrs = {key: read_attribute(kind, attrs[key], key) for key in attrs}
    (place,) = _fit(_END.fullmatch(line, at)).groups()
    return Op(
        kind=kind,
        operands=tuple(operands[1:].split(", %")) if operands else (),
        results=tuple(results),
        attrs=attrs,
        place=None if place is None else _place(place),
    )


def _read_mapping(line: str, at: int) -> tuple[dict[str, Any], int]:
    """Return the mapping after its opening brace, and the position behind it."""
    mapping: dict[str, Any] = {}
    if line.startswith("}", at):
        return mapping, at + 1
    while True:
        key = _fit(_KEY.match(line, at))
        mapping[key[1]], at = _read_term(line, key.end())
        if line.startswith("}", at):
            return mapping, at + 1
        if not line.startswith(", ", at):
            raise _UnfitError
        at += 2


def _read_list(line: str, at: int) -> tuple[tuple[Any, ...], int]:
    """Return the list after its opening bracket, and the position behind it."""
    items: list[Any] = []
    if line.startswith("]", at):
        return (), at + 1
    while True:
        item, at = _read_term(line, at)
        items.append(item)
        if line.startswith("]", at):
            return tuple(items), at + 1
        if not line.startswith(", ", at):
            raise _UnfitError
        at += 2


def _read_term(line: str, at: int) -> tuple[Any, int]:
    found = _fit(_TERM.match(line, at))
    at = found.end()
    number, string, place, word, bracket = found.groups()
    if bracket == "{":
        return _read_mapping(line, at)
    if bracket:
        return _read_list(line, at)
    if number:
        return parse_number(number), at
    if string:
        return json.loads(string), at
    if place:
        return _place(place), at
    return RESERVED.get(word, word), at


@cache
def _tensor(text: str) -> TensorType:
    return TensorType.parse(text)


@cache
def _residual(text: str) -> ResidualType:
    parts = re.findall(_TENSOR, text)
    return ResidualType(tuple(map(_tensor, parts)))


@cache
def _place(text: str) -> Place:
    return Place.parse(text)


def make_value(
    name: str, value_type: TensorType | ResidualType, layout: str | None
) -> Value:
    """Return a value with the layout of a text such as `S/R` or `F[0/64]`."""
    if layout is not None and layout.startswith("F"):
        return Value(name, value_type, "F", flat=_parse_flat(layout))
    places, _, over = (layout or "").partition("/")
    return Value(name, value_type, places or None, over or None)  # type: ignore[arg-type]


def read_attribute(kind: str, term: object, name: str) -> object:
    """Return the value of an attribute from its text. Raises OpError if it is invalid."""
    attr = attribute(kind, name)
    if attr.type in _READERS:
        try:
            term = _READERS[attr.type](term)
        except ValueError as error:
            message = f"cannot have {name}: {term!r}: {error}"
            raise OpError(message, attr=name).of(kind) from error
    check_value(kind, attr, term)
    return term


def _parse_flat(text: str) -> Flat:
    at, total = map(int, re.findall(r"\d+", text))
    return Flat(at, total, "whole" in text)


def parse_number(text: str) -> int | float:
    """Return the number in a text: an int if the text has only digits."""
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
