"""The op kinds that a spec may name, and how their attributes are read."""

from __future__ import annotations

from collections.abc import Mapping as Attributes
from functools import cache
from typing import Any, NamedTuple

from msgspec import inspect

from placer import ops
from placer.errors import OpError, did_you_mean
from placer.ops.composite import Composite
from placer.ops.composites import COMPOSITES
from placer.ops.declaration import Declaration
from placer.spec.decode import missing, problem_free, unknown_keys
from placer.spec.problems import Problems
from placer.spec.sections.parameters import frozen
from placer.spec.tree import Mapping

COMMON = ("name", "op", "in", "out", "place", "params")
"""The keys of every op; the others are its attributes."""

PARAMETER = "parameter"
"""The kind that declares a parameter by itself; it is no op of a declaration."""

CALL = "call"
"""The kind whose results the spec itself types: a JAX function of the user's."""

TRACE = "trace"
"""The kind that is several ops: a JAX function, cut where guards inside of it say."""


class Kind(NamedTuple):
    """A declaration, and the type of each attribute as its values are checked."""

    declaration: Declaration | Composite
    attrs: Attributes[str, tuple[Any, inspect.Type]]
    keys: frozenset[str]


@cache
def kinds() -> dict[str, Kind]:
    """The kinds by name; `constant` is the one that both specs and passes make."""
    declared = [ops.find(name) for name in ops.kinds()]
    written = [d for d in declared if not d.inserted or d.kind == "constant"]
    found = {}
    every: list[Declaration | Composite] = [*written, *COMPOSITES]
    for kind in every:
        attrs = {a.name: (a.type, inspect.type_info(a.type)) for a in kind.attrs}
        found[kind.kind] = Kind(kind, attrs, frozenset((*COMMON, *attrs)))
    return found


def unknown_kind(name: str) -> tuple[str, str | None]:
    """The message and the hint for a kind that a spec cannot name."""
    hint = did_you_mean(name, [*kinds(), PARAMETER, CALL, TRACE])
    return f"unknown op '{name}'", hint or "`placer schema` and docs/ops.md list them"


def read_attrs(
    kind: Kind, node: Mapping, name: str, problems: Problems
) -> dict[str, Any] | None:
    """The attributes that an op's mapping gives; None when one is wrong.

    Lists are tuples. What is missing or none of the choices is told too.
    """
    where = f"op '{name}' ({kind.declaration.kind})"
    entries = node.entries
    good = entries.keys() <= kind.keys
    meant = set() if good else unknown_keys(node, kind.keys, where, problems)
    given = {}
    for attr in kind.declaration.attrs:
        value = entries.get(attr.name)
        if value is None:
            if attr.required:
                good = False
                if attr.name not in meant:
                    missing(node, attr.name, where, problems)
            continue
        type_, info = kind.attrs[attr.name]
        if not problem_free(attr.name, value, type_, info, problems):
            good = False
        elif attr.choices and value.value not in attr.choices:
            hint = did_you_mean(str(value.value), attr.choices)
            message = f"{where} cannot have {attr.name}: {value.value}"
            problems.add(message, value.span, hint)
            good = False
        else:
            given[attr.name] = _as(attr.type, frozen(value))
    return given if good else None


def _as(type_: Any, value: Any) -> Any:
    return float(value) if type_ is float else value


def told(error: OpError, kind: str, name: str) -> str:
    """An op's error as a message that names the op, and its kind once."""
    if error.message.startswith(f"{kind} "):
        return f"op '{name}': {error.message}"
    return f"op '{name}' ({kind}): {error.message}"
