"""Completes the attributes of ops with defaults, and shortens them for the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from msgspec import Struct

from placer.errors import OpError, did_you_mean
from placer.ops.declaration import Attr, Declaration, Signature


def complete(
    declaration: Signature, written: Mapping[str, Any], *, for_parameters: bool = False
) -> dict[str, Any]:
    """Return all attributes of an op in the declaration's order, with defaults.

    Args:
        written: the attributes of a spec or of the graph.
        for_parameters: include attributes that only shape the parameters of a layer.
            They are not in the graph, but `declaration.parameters` needs them.

    Raises:
        OpError: if an attribute is unknown, a required one is missing, or a value is
            not one of the choices.
    """
    kind = declaration.kind
    if not written and not for_parameters and kind in _DEFAULTS:
        return dict(_DEFAULTS[kind])
    attrs = [a for a in declaration.attrs if for_parameters or not a.for_parameters]
    names = [a.name for a in attrs]
    for name in written:
        if name not in names:
            hint = did_you_mean(name, names)
            raise OpError(f"has no attribute '{name}'", attr=name, hint=hint).of(kind)
    complete_attrs = {a.name: _value(kind, a, written) for a in attrs}
    if not written and not for_parameters:
        _DEFAULTS[kind] = dict(complete_attrs)
    return complete_attrs


_DEFAULTS: dict[str, dict[str, Any]] = {}
"""The results of `complete` for ops without written attributes, which are most ops."""


def _value(kind: str, attr: Attr, given: Mapping[str, Any]) -> Any:
    if attr.name not in given:
        if attr.required:
            message = f"needs the attribute '{attr.name}': {attr.doc}"
            raise OpError(message, attr=attr.name).of(kind)
        return attr.default
    value = given[attr.name]
    if attr.choices and value not in attr.choices:
        raise _not_a_choice(kind, attr, value)
    return value


def check_value(kind: str, attr: Attr, value: object) -> None:
    """Raise OpError if a value in a graph does not have its attribute's type."""
    if value is None and attr.default is None and not attr.required:
        return
    try:
        classes = get_args(attr.type) or (attr.type,)
        if not all(
            isinstance(each, type) and issubclass(each, Struct) for each in classes
        ):
            msgspec.convert(value, attr.type)
        elif not isinstance(value, classes):
            # `convert` accepts mappings in place of structs.
            expected = " | ".join(each.__name__ for each in classes)
            got = type(value).__name__
            raise msgspec.ValidationError(f"Expected `{expected}`, got `{got}`")
    except msgspec.ValidationError as error:
        message = f"cannot have {attr.name}: {value!r}: {error}"
        raise OpError(message, attr=attr.name).of(kind) from error
    if attr.choices and value not in attr.choices:
        raise _not_a_choice(kind, attr, value)


def _not_a_choice(kind: str, attr: Attr, value: object) -> OpError:
    hint = did_you_mean(str(value), attr.choices)
    return OpError(f"cannot have {attr.name}: {value}", attr=attr.name, hint=hint).of(
        kind
    )


def condense(declaration: Declaration, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes to store in the graph, without defaults."""
    complete_attrs = complete(declaration, attrs, for_parameters=True)
    return {
        attr.name: complete_attrs[attr.name]
        for attr in declaration.attrs
        if not attr.for_parameters
        and (attr.required or complete_attrs[attr.name] != attr.default)
    }
