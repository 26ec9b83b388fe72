"""The op kinds that a spec may use, and the reader of their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from msgspec import inspect

from placer import ops
from placer.errors import OpError, did_you_mean
from placer.ops.composite import Composite
from placer.ops.composites import COMPOSITES
from placer.ops.declaration import Declaration
from placer.spec.decode import check_type, report_missing, report_unknown_keys
from placer.spec.problems import Problems
from placer.spec.sections.parameters import freeze
from placer.spec.tree import MappingNode

COMMON_KEYS = ("name", "op", "in", "out", "place", "params")
"""The keys that every op may have. Other keys are attributes."""

PARAMETER = "parameter"
"""The kind of a parameter that belongs to no layer; it has no declaration."""

CALL = "call"
"""The kind of a JAX function of the user, with the types of its results."""

TRACE = "trace"
"""The kind of a JAX function that guards cut into regions; each region is an op."""


class OpKind(NamedTuple):
    """An op kind: its declaration, the types of its attributes, and its valid keys."""

    declaration: Declaration | Composite
    attrs: Mapping[str, tuple[Any, inspect.Type]]
    keys: frozenset[str]


@cache
def op_kinds() -> dict[str, OpKind]:
    """Return the kinds by name.

    Kinds that only passes insert are not among them; `constant` is, as both specs and
    passes use it.
    """
    declared = [ops.find(name) for name in ops.kinds()]
    in_specs = [d for d in declared if not d.inserted or d.kind == "constant"]
    kinds = {}
    declarations: list[Declaration | Composite] = [*in_specs, *COMPOSITES]
    for kind in declarations:
        attrs = {a.name: (a.type, inspect.type_info(a.type)) for a in kind.attrs}
        kinds[kind.kind] = OpKind(kind, attrs, frozenset((*COMMON_KEYS, *attrs)))
    return kinds


def describe_unknown_kind(name: str) -> tuple[str, str | None]:
    """Return the message and the hint for an unknown op kind."""
    hint = did_you_mean(name, [*op_kinds(), PARAMETER, CALL, TRACE])
    return f"unknown op '{name}'", hint or "`placer schema` and docs/ops.md list them"


def read_attrs(
    kind: OpKind, node: MappingNode, name: str, problems: Problems
) -> dict[str, Any] | None:
    """Return the attributes in the mapping of an op, with tuples for lists.

    Reports unknown keys, missing attributes, wrong types and values that are not among
    the choices, and then returns None.
    """
    where = f"op '{name}' ({kind.declaration.kind})"
    entries = node.entries
    good = entries.keys() <= kind.keys
    meant = set() if good else report_unknown_keys(node, kind.keys, where, problems)
    attrs = {}
    for attr in kind.declaration.attrs:
        value = entries.get(attr.name)
        if value is None:
            if attr.required:
                good = False
                if attr.name not in meant:
                    report_missing(node, attr.name, where, problems)
            continue
        type_, info = kind.attrs[attr.name]
        if not check_type(attr.name, value, type_, info, problems):
            good = False
        elif attr.choices and value.value not in attr.choices:
            hint = did_you_mean(str(value.value), attr.choices)
            message = f"{where} cannot have {attr.name}: {value.value}"
            problems.add(message, value.span, hint)
            good = False
        else:
            attrs[attr.name] = _convert(attr.type, freeze(value))
    return attrs if good else None


def _convert(type_: Any, value: Any) -> Any:
    return float(value) if type_ is float else value


def format_op_error(error: OpError, kind: str, name: str) -> str:
    """Return the message of an OpError, after the name and the kind of the op."""
    if error.message.startswith(f"{kind} "):
        return f"op '{name}': {error.message}"
    return f"op '{name}' ({kind}): {error.message}"
