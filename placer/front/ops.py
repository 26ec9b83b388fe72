"""Calls of ops, as `placer.layers` hands them over: what was given becomes an entry."""

from __future__ import annotations

from collections.abc import Mapping as Entries
from collections.abc import Sequence
from typing import Any

from placer.callsite import caller
from placer.config.checks import shown
from placer.errors import SpecError
from placer.front.program import Program, Recorded, current_program
from placer.front.variable import Variable
from placer.ops.declaration import Attr, Declaration
from placer.spec.op_kinds import kinds

Inputs = Entries[str, Variable | Sequence[Variable] | None]
"""The operands by name; None is one that may be left out and is, several are of one."""


def one(
    kind: str,
    inputs: Inputs,
    attrs: Entries[str, Any],
    name: str | None = None,
    params: Entries[str, Variable] | None = None,
) -> Variable:
    """Record an op of one result, which is returned."""
    (value,) = several(kind, inputs, attrs, name, params)
    return value


def several(
    kind: str,
    inputs: Inputs,
    attrs: Entries[str, Any],
    name: str | None = None,
    params: Entries[str, Variable] | None = None,
    out: Sequence[str] | None = None,
) -> tuple[Variable, ...]:
    """Record an op and return its results. Attributes at their defaults are not said.

    Raises SpecError at the caller's line.
    """
    program, declared = current_program(), kinds()[kind].declaration
    given = _given(kind, inputs)
    names = [value.name for _, value in given]
    entry: dict[str, Any] = {}
    if names:
        entry["in"] = [v for _, v in given] if len(names) > 1 else given[0][1]
    defaults = {attr.name: attr for attr in declared.attrs}
    entry |= {k: v for k, v in attrs.items() if not _is_default(v, defaults[k])}
    if params:
        entry["params"] = params
    if out is not None:
        entry["out"] = out
    recorded = program.record(kind, entry, name)
    if isinstance(declared, Declaration) and declared.roles is not None:
        _check_roles(declared, [key for key, _ in given], recorded, program)
    return recorded.values


def _given(kind: str, inputs: Inputs) -> list[tuple[str, Variable]]:
    """The operands in their order, by name."""
    found = []
    for key, value in inputs.items():
        if value is None:
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(each, Variable):
                raise SpecError(
                    f"'{key}' of {kind} must be a value of the program, not"
                    f" {shown(each)}",
                    span=caller(),
                )
            found.append((key, each))
    return found


def _is_default(value: object, attr: Attr) -> bool:
    default = attr.default
    if attr.required or isinstance(value, bool) != isinstance(default, bool):
        return False
    return bool(value == default)


def _check_roles(
    declared: Declaration, given: list[str], recorded: Recorded, program: Program
) -> None:
    """Raise SpecError where an optional operand would be taken for another one."""
    assert declared.roles is not None
    op = recorded.ops[-1]
    types = [program.type_of(name) for name in op.operands]
    taken = list(declared.roles(types))[: len(given)]
    if taken != given:
        program.take_back()
        raise SpecError(
            f"{declared.kind} takes its operands in order: {', '.join(given)} would be"
            f" {', '.join(taken)}",
            span=caller(),
            hint="give those before it too",
        )
