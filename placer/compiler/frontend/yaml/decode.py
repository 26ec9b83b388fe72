"""Decodes a mapping of the tree by a msgspec struct, and reports every error in it.

Each field is decoded separately, so one error does not hide another. Nested structs
stay nodes: the reader of their section decodes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import FieldInfo

from placer.compiler.frontend.entries.names import explain_invalid_name, quote
from placer.compiler.frontend.other_names import meant_key
from placer.compiler.frontend.yaml.errors import (
    cut_place_hint,
    missing_blank_hint,
    missing_brackets_hint,
)
from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.scalars import resolve
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
)
from placer.errors import did_you_mean, nearest
from placer.plan.settings.checks import describe_value

_SECTIONS = ("the spec", "data", "data.train", "data.eval", "train", "predict")
"""Names of sections in messages. Users know these sections by their keys."""


@cache
def _fields_of(struct: type[Struct]) -> dict[str, tuple[FieldInfo, bool]]:
    """Return the fields by key, required ones first, and whether each is nested."""
    fields = sorted(msgspec.structs.fields(struct), key=lambda each: not each.required)
    return {
        field.encode_name: (field, _is_nested(inspect.type_info(field.type)))
        for field in fields
    }


def decode(
    node: SpecNode | None,
    struct: type[Struct],
    where: str,
    problems: Problems,
    others: Iterable[str] = (),
    skipped: Collection[str] = (),
) -> dict[str, Any]:
    """Decode a mapping and return its valid fields: values, defaults and nested nodes.

    Args:
        node: The mapping. None if the key of the mapping is missing: this is not an
            error here.
        struct: The struct that declares the fields.
        where: The name of the mapping in messages, such as `data.train`.
        problems: Collects the errors. A field with an error is not in the result.
        others: Valid keys that the struct does not declare. The caller reads them.
        skipped: Keys of the struct that the caller reads.
    """
    fields = _fields_of(struct)
    hint = missing_blank_hint(node.text) if isinstance(node, ScalarNode) else None
    hint = hint or f"its keys are: {', '.join(fields)}"
    node = problems.expect(node, MappingNode, f"{where} must be a mapping", hint)
    if node is None:
        return {}
    meant = report_unknown_keys(node, (*fields, *others), where, problems)
    return decode_fields(node, struct, where, problems, meant, skipped)


def decode_fields(
    node: MappingNode,
    struct: type[Struct],
    where: str,
    problems: Problems,
    meant: Collection[str] = (),
    skipped: Collection[str] = (),
) -> dict[str, Any]:
    """Like `decode`, for a mapping that may have further keys. A missing required field
    is not reported if `meant` contains it."""
    result: dict[str, Any] = {}
    for key, (field, is_nested) in _fields_of(struct).items():
        if key in skipped:
            continue
        value = node.get(key)
        # A default factory only occurs in nested fields, which are decoded elsewhere.
        default = None if field.default is msgspec.NODEFAULT else field.default
        if value is None:
            if not field.required:
                result[key] = default
            elif key not in meant:
                report_missing(node, key, where, problems, _describe_field(field))
        elif is_nested:
            if not (isinstance(value, ScalarNode) and value.value is None):
                result[key] = value
            elif field.required:
                report_wrong_type(key, value, field.type, problems)
            else:
                result[key] = default
        elif check_type(key, value, field.type, problems):
            result[key] = msgspec.convert(value.value, field.type)
    return result


def decode_parts(
    good: Mapping[str, Any], struct: type[Struct], where: str, problems: Problems
) -> dict[str, Any]:
    """Return the struct's fields from `good`, with nested structs decoded to mappings.
    Messages call a nested field `where.KEY`."""
    result = {key: good[key] for key in _fields_of(struct) if key in good}
    for key, value in result.items():
        if isinstance(value, SpecNode):
            options = _options(inspect.type_info(_fields_of(struct)[key][0].type))
            (part,) = (o.cls for o in options if isinstance(o, inspect.StructType))
            path = f"{where}.{key}"
            inner = decode(value, part, path, problems)
            result[key] = decode_parts(inner, part, path, problems)
    return result


def report_unknown_keys(
    node: MappingNode, valid: Iterable[str], where: str, problems: Problems
) -> set[str]:
    """Report every key that is not in `valid`. Return the valid keys that the user
    probably meant. The hint names the closest valid key, or explains a common trap of
    YAML."""
    names = frozenset(valid)
    meant: set[str] = set()
    if node.entries.keys() <= names:
        return meant
    before = ""
    for key, scalar in node.keys.items():
        if key not in names:
            empty = node.entries[key].value is None
            if empty and before and cut_place_hint(node, before):
                # A place with several commas is cut into several keys; report it once.
                pass
            else:
                hint = _unknown_key_hint(node, key, names, meant, where)
                problems.add(f"unknown key {quote(key)} in {where}", scalar.span, hint)
        before = key
    return meant


def _unknown_key_hint(
    node: MappingNode, key: str, names: frozenset[str], meant: set[str], where: str
) -> str | None:
    if node.entries[key].value is None:
        if hint := missing_blank_hint(key):
            meant.add(key.partition(":")[0])
            return hint
        if hint := cut_place_hint(node, key) or missing_brackets_hint(node, key):
            return hint
    if key == "<<":
        return "merge keys are not supported; write the keys out"
    if (other := meant_key(key, names)) is not None:
        meant.add(other)
        return f"did you mean '{other}'? The keys are {', '.join(sorted(names))}"
    if where in _SECTIONS and (hint := _elsewhere_hint(key, where)):
        return hint
    close = nearest(key, names)
    if close is not None:
        meant.add(close)
    return did_you_mean(key, names)


def _elsewhere_hint(key: str, where: str) -> str | None:
    from placer.compiler.frontend.setting_names import (
        find_elsewhere,  # Imported here because the module imports the schema.
    )

    path = find_elsewhere(key, where)
    if path is None:
        return None
    section, _, name = path.rpartition(".")
    if not section:
        return f"'{name}' is a key of the spec, not of a section"
    return f"'{name}' is a key of {section}: {path}"


def _describe_field(field: FieldInfo) -> str | None:
    """Return the description of a field in the JSON Schema."""
    info = inspect.type_info(field.type)
    schema = info.extra_json_schema if isinstance(info, inspect.Metadata) else None
    return schema.get("description") if schema else None


def report_missing(
    node: MappingNode,
    key: str,
    where: str,
    problems: Problems,
    about: str | None = None,
) -> None:
    """Report a missing key. The hint explains `{key:value}`, which lacks a space, or a
    key with a name of other systems. Otherwise it says what the key is `about`."""
    hints = (hint for other in node.keys if (hint := missing_blank_hint(other)))
    hint = next((each for each in hints if f"'{key}: " in each), None)
    other = next((name for name in node.keys if meant_key(name, (key,))), None)
    if hint is None and other is not None:
        hint = f"write '{key}' instead of '{other}'"
    if hint is None and about is not None:
        hint = f"add {key}: {about}"
    problems.add(f"'{key}' is missing in {where}", node.span, hint)


def check_type(key: str, node: SpecNode, type_: Any, problems: Problems) -> bool:
    """Return True if a value has the type; otherwise report the error. In a list or
    mapping, each wrong item is reported at its own position."""
    if _is_of(node.value, type_):
        return True
    misfits: list[tuple[str, SpecNode, inspect.Type]] = []
    wrong_keys: list[ScalarNode] = []
    for option in _options(inspect.type_info(type_)):
        if isinstance(node, MappingNode) and isinstance(option, inspect.StructType):
            _check_fields(key, node, option.cls, problems)
            return False
        if isinstance(node, SequenceNode) and isinstance(option, inspect.ListType):
            misfits += (
                (f"an item of '{key}'", item, option.item_type)
                for item in node.items
                if not _is_of([item.value], type_)
            )
        elif isinstance(node, SequenceNode) and isinstance(option, inspect.TupleType):
            misfits += (
                (f"an item of '{key}'", item, item_type)
                for item, item_type in zip(node.items, option.item_types, strict=False)
                if not _is_of([item.value] * len(option.item_types), type_)
            )
        elif isinstance(node, MappingNode) and isinstance(option, inspect.DictType):
            wrong_keys += (
                at for name, at in node.keys.items() if not _is_key(name, option)
            )
            misfits += (
                (f"'{name}' in '{key}'", item, option.value_type)
                for name, item in node
                if _is_key(name, option) and not _is_of({name: item.value}, type_)
            )
    for at in wrong_keys:
        message, hint = explain_invalid_name(at.text)
        problems.add(message, at.span, hint)
    for what, item, item_type in misfits:
        _report_misfit(what, item, item_type, problems)
    if not misfits and not wrong_keys:
        report_wrong_type(key, node, type_, problems)
    return False


def _report_misfit(
    what: str, node: SpecNode, info: inspect.Type, problems: Problems
) -> None:
    """Report a value of the wrong type, or each list item that is not text."""
    for option in _options(info):
        if (
            isinstance(node, SequenceNode)
            and isinstance(option, inspect.ListType)
            and isinstance(option.item_type, inspect.StrType)
        ):
            for each in node.items:
                if not isinstance(each.value, str):
                    problems.add(
                        f"an item of {what} must be text, not"
                        f" {describe_value(each.value)}",
                        each.span,
                        _quoted_hint(each),
                    )
            return
    is_text = any(isinstance(each, inspect.StrType) for each in _options(info))
    message = f"{what} must be {_describe_type(info)}, not {describe_value(node.value)}"
    problems.add(message, node.span, _quoted_hint(node) if is_text else None)


def _quoted_hint(node: SpecNode) -> str | None:
    """Return how to write a number or bool as text."""
    if isinstance(node, ScalarNode) and node.value is not None:
        return f'write "{node.text}"'
    return None


def _check_fields(
    key: str, node: MappingNode, struct: type[Struct], problems: Problems
) -> None:
    fields = {each.encode_name: each for each in msgspec.structs.fields(struct)}
    meant = report_unknown_keys(node, fields, f"'{key}'", problems)
    for name, field in fields.items():
        value = node.get(name)
        if value is not None:
            check_type(name, value, field.type, problems)
        elif field.required and name not in meant:
            about = _describe_field(field)
            report_missing(node, name, f"'{key}'", problems, about)


def _is_key(name: str, info: inspect.DictType) -> bool:
    key = info.key_type
    pattern = key.pattern if isinstance(key, inspect.StrType) else None
    return pattern is None or re.search(pattern, name) is not None


def _is_of(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def report_wrong_type(key: str, node: SpecNode, type_: Any, problems: Problems) -> None:
    """Report that a value has the wrong type."""
    info, hint = inspect.type_info(type_), None
    options = _options(info)
    literals = [
        v for o in options if isinstance(o, inspect.LiteralType) for v in o.values
    ]
    actual = describe_value(node.value)
    message = f"'{key}' must be {_describe_type(info)}, not {actual}"
    if literals and isinstance(node.value, str):
        close = nearest(node.value, map(str, literals))
        hint = f"did you mean '{close}'?" if close else None
        if key == "precision" and "16" in node.value:
            hint = (
                "parameters cannot be float16 or bfloat16; convert values with the op"
                " 'cast'"
            )
    elif key == "place":
        hint = "write for example /node:worker/cpu"
    elif unquoted := unquoted_hint(node, type_):
        hint = unquoted
    elif isinstance(node, ScalarNode) and node.value is not None:
        lists = (inspect.ListType, inspect.VarTupleType)
        takes_list = any(isinstance(option, lists) for option in options)
        takes_list = takes_list and _is_of([node.value], type_)
        hint = f"write [{node.text}]" if takes_list else None
    problems.add(message, node.span, hint)


def unquoted_hint(node: SpecNode, type_: Any) -> str | None:
    """Return a hint for a number or bool in quotes; None for other nodes."""
    if not isinstance(node, ScalarNode) or node.plain:
        return None
    with suppress(ValueError):
        if _is_of(resolve(node.text), type_):
            return f"write it without quotes: {node.text}"
    return None


def _describe_type(info: inspect.Type) -> str:
    """Describe the valid values of a type, to follow 'must be'."""
    return " or ".join(dict.fromkeys(map(_describe_option, _options(info))))


def _describe_option(info: inspect.Type) -> str:
    match info:
        case inspect.IntType(ge=low, le=high) if low is not None and high is not None:
            return f"a whole number from {low} to {high}"
        case inspect.IntType(ge=low) if low is not None:
            return f"a whole number from {low}"
        case inspect.IntType():
            return "a whole number"
        case inspect.FloatType(ge=low, lt=high) if low is not None and high is not None:
            return f"a number from {low:g} to less than {high:g}"
        case inspect.FloatType(gt=low, le=high) if low is not None and high is not None:
            return f"a number above {low:g} and up to {high:g}"
        case inspect.FloatType(gt=low) if low is not None:
            return f"a number greater than {low:g}"
        case inspect.FloatType(ge=low) if low is not None:
            return f"a number from {low:g}"
        case inspect.FloatType():
            return "a number"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(
                f"'{value}'" if isinstance(value, str) else str(value)
                for value in values
            )
        case inspect.ListType():
            return "a list"
        case inspect.DictType() | inspect.StructType():
            return "a mapping"
        case _:
            return "text"


def _options(info: inspect.Type) -> list[inspect.Type]:
    """Return the alternatives of a union, without None: an absent key means None."""
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
