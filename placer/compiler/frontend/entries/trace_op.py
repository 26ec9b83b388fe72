"""Reads `trace` ops: the arguments of a JAX function, and its regions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from placer.compiler.frontend.entries.call_op import split_result
from placer.compiler.frontend.entries.names import (
    explain_invalid_name,
    is_name,
    is_parameter_key,
)
from placer.compiler.frontend.entries.types import read_type
from placer.compiler.frontend.schema import Region
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.problems import Problems, all_or_none
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SequenceNode,
    SpecNode,
    as_list,
)
from placer.errors import did_you_mean
from placer.place.types import TensorType
from placer.plan.settings.checks import describe_value

ARGUMENT_FORMS = ("in", "param", "make", "state", "value", "list", "tuple", "dict")
"""The keys that an argument may have."""


class RegionNode(NamedTuple):
    """A region as written in the spec, with the names and types of its results."""

    node: MappingNode
    results: list[tuple[str, TensorType]]


def read_regions(
    section: SpecNode | None, name: str, problems: Problems, key: str = "regions"
) -> list[RegionNode] | None:
    """Read the regions of an op in its key `regions` or `evaluation`. None after an
    error."""
    if not isinstance(section, SequenceNode) or not (section.items or key != "regions"):
        if section is not None:
            message = f"'{key}' must list the regions of the function"
            problems.add(message, section.span, "placer.trace writes this list")
        return None
    return all_or_none(
        _read_region(item, f"{key}[{number}] of op '{name}'", name, problems)
        for number, item in enumerate(section.items)
    )


def _read_region(
    item: SpecNode, where: str, name: str, problems: Problems
) -> RegionNode | None:
    good = decode(item, Region, where, problems)
    if not isinstance(item, MappingNode) or not {"in", "out"} <= good.keys():
        return None
    out = as_list(item.entries["out"])
    results = all_or_none(_read_result(each, name, problems) for each in out)
    if not out:
        problems.add(f"{where} has no results", item.span)
    return RegionNode(item, results) if results else None


def _read_result(
    item: SpecNode, name: str, problems: Problems
) -> tuple[str, TensorType] | None:
    """Read a result `name: type`. It is named like the op, or starts with `OP.`."""
    if (pair := split_result(item, name, problems)) is None:
        return None
    key, node = pair
    suffix = key.text.removeprefix(f"{name}.")
    # The new value of a state is called OP.KEY.new.
    state = suffix.removesuffix(".new")
    is_good = is_name(suffix) if state == suffix else is_parameter_key(state)
    if key.text != name and (suffix == key.text or not is_good):
        message, hint = explain_invalid_name(key.text)
        hint = (
            f"{hint}; name a result of a region {name}, or start its name with {name}."
        )
        problems.add(message, key.span, hint)
        return None
    type_ = read_type(node, problems)
    return None if type_ is None else (key.text, type_)


def read_switched(
    section: SpecNode | None, name: str, types: Mapping[str, Any], problems: Problems
) -> dict[str, tuple[str, str]] | None:
    """Read the values of each result in training and in evaluation. None after an
    error."""
    switched: dict[str, tuple[str, str]] = {}
    for key, item in section if isinstance(section, MappingNode) else ():
        names = [str(each.value) for each in as_list(item)]
        unknown = [each for each in names if each not in types]
        suffix = key.removeprefix(f"{name}.")
        if key != name and (suffix == key or not is_name(suffix)):
            message, span = f"'{key}' is no result of op '{name}'", item.span
        elif key in types:
            message, span = f"op '{name}': '{key}' already exists", item.span
        elif len(names) != 2 or unknown:
            message = (
                f"'{key}' must list two values of op '{name}', of training and of"
                " evaluation"
            )
            span = item.span
        else:
            switched[key] = names[0], names[1]
            continue
        problems.add(message, span, "placer.trace writes this mapping")
        return None
    return switched


def encode_arguments(
    args: SpecNode, name: str, types: Mapping[str, TensorType], problems: Problems
) -> str | None:
    """Return `args` as JSON for `placer.ops.functions`; None after an error. The names
    of values are replaced by their types."""
    assert isinstance(args, SequenceNode)
    encoded = [_encode_argument(item, name, types, problems) for item in args.items]
    return None if None in encoded else json.dumps(encoded)


def _encode_argument(
    item: SpecNode, name: str, types: Mapping[str, TensorType], problems: Problems
) -> dict[str, Any] | None:
    if not isinstance(item, MappingNode) or [*item.entries] not in [
        [t] for t in ARGUMENT_FORMS
    ]:
        message = (
            f"an argument must be one of {', '.join(ARGUMENT_FORMS)},"
            f" not {describe_value(item.value)}"
        )
        hint = "write {in: x} for a value, {make: model} for an object of fn's module"
        problems.add(message, item.span, hint)
        return None
    ((key, content),) = item
    match key:
        case "in" | "param":
            prefix = f"{name}." if key == "param" else ""
            value = f"{prefix}{content.value}"
            if value not in types:
                message = f"op '{name}' has no '{content.value}'"
                names = (n.removeprefix(prefix) for n in types if n.startswith(prefix))
                near = did_you_mean(str(content.value), names)
                problems.add(message, content.span, near)
                return None
            return {key: str(types[value])}
        case "state":
            inner = _encode_argument(content, name, types, problems)
            if inner is not None and "make" not in inner:
                message = "'state' must contain {make: NAME}"
                problems.add(message, content.span)
                return None
            return None if inner is None else {key: inner}
        case "make" if isinstance(content, MappingNode):
            return _encode_made(content, name, types, problems)
        case "make":
            if not isinstance(content.value, str) or not is_name(content.value):
                message = (
                    "'make' must name an object in the module of fn, not"
                    f" {describe_value(content.value)}"
                )
                problems.add(message, content.span)
                return None
            return {key: content.value}
        case "value" if isinstance(content, ScalarNode):
            return {key: content.value}
        case "dict" if isinstance(content, MappingNode):
            inner = {k: _encode_argument(v, name, types, problems) for k, v in content}
            return None if None in inner.values() else {key: inner}
        case "list" | "tuple" if isinstance(content, SequenceNode):
            items = [
                _encode_argument(each, name, types, problems) for each in content.items
            ]
            return None if None in items else {key: items}
    problems.add(
        f"'{key}' must contain arguments, not {describe_value(content.value)}",
        content.span,
    )
    return None


def _encode_made(
    content: MappingNode, name: str, types: Mapping[str, TensorType], problems: Problems
) -> dict[str, Any] | None:
    """Encode `{fn: make, with: {layers: {value: 6}}, state: [norm.mean]}`."""
    fn, given, state = (content.get(key) for key in ("fn", "with", "state"))
    keys = {*content.entries}
    is_known = "fn" in keys and {"fn"} < keys <= {"fn", "with", "state"}
    if not is_known or ("with" in keys and not isinstance(given, MappingNode)):
        problems.add(
            "'make' must name an object in the module of fn, or have 'fn' and 'with'"
            " or 'state'",
            content.span,
            "write {make: {fn: model, with: {layers: {value: 6}}}}",
        )
        return None
    assert fn is not None
    if not isinstance(fn.value, str) or not is_name(fn.value):
        shown = describe_value(fn.value)
        message = f"'fn' must name a function in the module of fn, not {shown}"
        problems.add(message, fn.span)
        return None
    made: dict[str, Any] = {"fn": fn.value}
    if isinstance(given, MappingNode):
        terms = {k: _encode_argument(v, name, types, problems) for k, v in given}
        if None in terms.values():
            return None
        for key, term in terms.items():
            if not _is_plain(term):
                message = f"'{key}' must be plain data"
                hint = "a configuration has only value, list, tuple and dict"
                problems.add(message, given.entries[key].span, hint)
                return None
        made["with"] = terms
    if state is not None:
        paths = [str(each.value) for each in as_list(state)]
        if not isinstance(state, SequenceNode) or not paths:
            message = f"'state' must list paths, not {describe_value(state.value)}"
            problems.add(message, state.span, "write state: [norm.mean, norm.var]")
            return None
        made["state"] = paths
    return {"make": made}


def _is_plain(term: Any) -> bool:
    ((key, content),) = term.items()
    inner = content.values() if key == "dict" else content
    if key in ("list", "tuple", "dict"):
        return all(map(_is_plain, inner))
    return bool(key == "value")
