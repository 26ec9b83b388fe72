"""Attributes: complete for a declaration, condensed for the graph's text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from placer.errors import OpError, did_you_mean
from placer.ops.composite import Composite
from placer.ops.declaration import Attr, Declaration


def complete(
    declaration: Declaration | Composite,
    given: Mapping[str, Any],
    *,
    build: bool = False,
) -> dict[str, Any]:
    """All attributes of an op in the declaration's order, defaults filled in.

    With `build`, those too that shape a layer's parameters and do not reach the graph:
    what `declaration.parameters` is asked with. OpError names an attribute that the op
    does not have, one that is missing, and a value that is none of the choices.
    """
    if not given and not build and declaration.kind in _DEFAULTS:
        return dict(_DEFAULTS[declaration.kind])
    attrs = [a for a in declaration.attrs if build or not a.build]
    names = [a.name for a in attrs]
    for name in given:
        if name not in names:
            raise OpError(
                f"{declaration.kind} has no attribute '{name}'",
                attr=name,
                hint=did_you_mean(name, names),
            )
    full = {a.name: _value(declaration.kind, a, given) for a in attrs}
    if not given and not build:
        _DEFAULTS[declaration.kind] = dict(full)
    return full


_DEFAULTS: dict[str, dict[str, Any]] = {}
"""Attributes of ops that are written without any, which most are."""


def _value(kind: str, attr: Attr, given: Mapping[str, Any]) -> Any:
    if attr.name not in given:
        if attr.required:
            raise OpError(
                f"{kind} needs the attribute '{attr.name}': {attr.doc}", attr=attr.name
            )
        return attr.default
    value = given[attr.name]
    if attr.choices and value not in attr.choices:
        raise OpError(
            f"{kind} cannot have {attr.name}: {value}",
            attr=attr.name,
            hint=did_you_mean(str(value), attr.choices),
        )
    return value


def check_types(declaration: Declaration, attrs: Mapping[str, Any]) -> None:
    """Raise OpError for a value that is not of its attribute's type."""
    for attr in declaration.attrs:
        value = attrs.get(attr.name, attr.default)
        if value == attr.default:
            continue
        try:
            msgspec.convert(value, attr.type)
        except msgspec.ValidationError as error:
            raise OpError(
                f"{declaration.kind} cannot have {attr.name}: {value!r}: {error}",
                attr=attr.name,
            ) from error


def condense(declaration: Declaration, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """What the graph holds: no build attribute, and nothing that is the default."""
    full = complete(declaration, attrs, build=True)
    return {
        attr.name: full[attr.name]
        for attr in declaration.attrs
        if not attr.build and (attr.required or full[attr.name] != attr.default)
    }
