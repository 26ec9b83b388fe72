"""One mapping of the tree against one struct: every mistake in it, and what is good.

Mappings are decoded one by one, and their fields one by one, so that independent
mistakes are told together. What a struct nests is left as nodes to its own reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from placer.config.checks import shown
from placer.errors import did_you_mean, nearest
from placer.spec.names import quoted
from placer.spec.problems import Problems
from placer.spec.tree import Mapping, Node, Scalar, Sequence
from placer.spec.yaml_errors import glued, trap, unlisted

LATER = frozenset({"sparse", "max_staleness"})
"""Keys that the design knows and no part reads yet."""


class Field(NamedTuple):
    """One field of a struct; a `nested` one is decoded by its own reader."""

    type: Any
    info: inspect.Type
    required: bool
    default: Any
    nested: bool


@cache
def fields(struct: type[msgspec.Struct]) -> dict[str, Field]:
    """The fields of a struct by key."""
    found = {}
    for field in msgspec.structs.fields(struct):
        info = inspect.type_info(field.type)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = None  # an empty container: only nested fields have one
        found[field.encode_name] = Field(
            field.type, info, field.required, default, _is_nested(info)
        )
    return found


def decode(
    node: Node | None,
    struct: type[msgspec.Struct],
    where: str,
    problems: Problems,
    others: Iterable[str] = (),
) -> dict[str, Any]:
    """The good fields of a mapping: values, defaults, and the nodes of nested fields.

    A field that is missing or wrong is told to `problems` and left out. `others` are
    keys that the caller reads itself.
    """
    plan = fields(struct)
    if not isinstance(node, Mapping):
        if node is not None:
            found = shown(node.value)
            hint = glued(node.text) if isinstance(node, Scalar) else None
            problems.add(f"{where} must be a mapping, not {found}", node.span, hint)
        return {}
    meant = unknown_keys(node, (*plan, *others), where, problems)
    result: dict[str, Any] = {}
    for key, field in plan.items():
        value = node.get(key)
        if value is None:
            if not field.required:
                result[key] = field.default
            elif key not in meant:
                missing(node, key, where, problems)
        elif field.nested:
            if not (isinstance(value, Scalar) and value.value is None):
                result[key] = value
            elif field.required:
                wrong(key, value, field.info, problems)
            else:
                result[key] = field.default
        elif problem_free(key, value, field.type, field.info, problems):
            result[key] = msgspec.convert(value.value, field.type)
    return result


def unknown_keys(
    node: Mapping, valid: Iterable[str], where: str, problems: Problems
) -> set[str]:
    """Tell of every key that is none of `valid`; return the keys that were meant.

    YAML's traps get hints of their own, other keys the nearest that is valid.
    """
    names = frozenset(valid)
    meant: set[str] = set()
    if node.entries.keys() <= names:
        return meant
    before = ""
    for key, scalar in node.keys.items():
        if key not in names:
            empty = node.entries[key].value is None
            if empty and before and trap(node, before):
                pass  # one place, cut at several commas, is told once
            elif key in LATER:
                problems.add(f"'{key}' is not supported yet", scalar.span)
            else:
                hint = _hint(node, key, names, meant)
                problems.add(f"unknown key {quoted(key)} in {where}", scalar.span, hint)
        before = key
    return meant


def _hint(
    node: Mapping, key: str, names: frozenset[str], meant: set[str]
) -> str | None:
    if node.entries[key].value is None:
        if hint := glued(key):
            meant.add(key.partition(":")[0])
            return hint
        if hint := trap(node, key) or unlisted(node, key):
            return hint
    if key == "<<":
        return "merge keys are not read; write the keys out"
    hint = did_you_mean(key, names)
    close = nearest(key, names)
    if close is not None:
        meant.add(close)
    elif key.lower() in YAML_1_1_WORDS:
        return f"if the text is meant, quote it; {hint}"
    return hint


YAML_1_1_WORDS = frozenset(
    {"on", "off", "yes", "no", "y", "n", "true", "false", "null"}
)
"""Words that YAML 1.1 reads as booleans or null; here they are the text they spell."""


def missing(node: Mapping, key: str, where: str, problems: Problems) -> None:
    found = (hint for other in node.keys if (hint := glued(other)))
    hint = next((each for each in found if f"'{key}: " in each), None)
    problems.add(f"'{key}' is missing in {where}", node.span, hint)


def problem_free(
    key: str, node: Node, type_: Any, info: inspect.Type, problems: Problems
) -> bool:
    """Whether the node's value is of the type; if not, say so at the value."""
    if _is_of(node.value, type_):
        return True
    misfits: list[tuple[str, Node, inspect.Type]] = []
    for option in _options(info):
        if isinstance(node, Sequence) and isinstance(option, inspect.ListType):
            misfits += (
                (f"an item of '{key}'", item, option.item_type)
                for item in node.items
                if not _is_of([item.value], type_)
            )
        elif isinstance(node, Mapping) and isinstance(option, inspect.DictType):
            misfits += (
                (f"'{name}' in '{key}'", item, option.value_type)
                for name, item in node
                if not _is_of({name: item.value}, type_)
            )
    for what, item, wanted in misfits:
        message = f"{what} must be {expected(wanted)}, not {shown(item.value)}"
        problems.add(message, item.span)
    if not misfits:
        wrong(key, node, info, problems)
    return False


def _is_of(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def wrong(key: str, node: Node, info: inspect.Type, problems: Problems) -> None:
    """Say what a value must be, and what it is."""
    found = shown(node.value)
    hint = None
    options = _options(info)
    literals = [
        v for o in options if isinstance(o, inspect.LiteralType) for v in o.values
    ]
    if len(literals) == 1 and isinstance(node.value, str):
        message = f"'{key}: {node.value}' is not supported yet"
        hint = f"only '{literals[0]}' is supported"
    else:
        message = f"'{key}' must be {expected(info)}, not {found}"
        if literals and isinstance(node.value, str):
            close = nearest(node.value, map(str, literals))
            hint = f"did you mean '{close}'?" if close else None
            if key == "precision" and "16" in node.value:
                hint = "parameters are not halves; values are made so by the op 'cast'"
        elif node.value is not None and any(_is_list(o) for o in options):
            hint = f"write [{node.text}]" if isinstance(node, Scalar) else None
    problems.add(message, node.span, hint)


def _is_list(info: inspect.Type) -> bool:
    return isinstance(info, inspect.ListType | inspect.VarTupleType)


def expected(info: inspect.Type) -> str:
    """What a type admits, in words that follow 'must be'."""
    return " or ".join(dict.fromkeys(map(_words, _options(info))))


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.IntType(ge=low, le=high) if low is not None and high is not None:
            return f"a whole number from {low} to {high}"
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType(gt=low) if low is not None:
            return f"a number greater than {low:g}"
        case inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(f"'{value}'" for value in values)
        case inspect.ListType():
            return "a list"
        case inspect.DictType() | inspect.StructType():
            return "a mapping"
        case _:
            return "text"


def _options(info: inspect.Type) -> list[inspect.Type]:
    """The alternatives of a type, without null, which means 'not given'."""
    if isinstance(info, inspect.Metadata):
        return _options(info.type)
    if isinstance(info, inspect.UnionType):
        return [o for t in info.types for o in _options(t)]
    return [] if isinstance(info, inspect.NoneType) else [info]


def _is_nested(info: inspect.Type) -> bool:
    return any(
        isinstance(option, inspect.StructType | inspect.AnyType)
        or (isinstance(option, inspect.ListType) and _is_nested(option.item_type))
        or (isinstance(option, inspect.DictType) and _is_nested(option.value_type))
        for option in _options(info)
    )
