"""Records calls of the functions of `placer.layers` as entries of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.compiler.frontend.entries.op_kinds import OpKind, op_kinds
from placer.compiler.frontend.python.program import OpRecord, Program, current_program
from placer.compiler.frontend.python.results import one_or_list
from placer.compiler.frontend.python.variable import Variable
from placer.ops.declaration import Attr, Declaration
from placer.plan.settings.checks import describe_value
from placer.system.callsite import call_error


def record_op(kind: str, arguments: Mapping[str, Any]) -> Variable:
    """Record an op with one result, and return the result."""
    (value,) = record_ops(kind, arguments)
    return value


def record_ops(kind: str, arguments: Mapping[str, Any]) -> tuple[Variable, ...]:
    """Record an op and return its results. Attributes with default values are left out.

    `arguments` are the arguments of the op's function: operands, attributes, `name`,
    and perhaps `params` and `out`. None is an omitted optional operand; a sequence is a
    variadic operand.

    Raises SpecError at the caller's line.
    """
    program, declared = current_program(), op_kinds()[kind]
    operands = _flatten_operands(declared, arguments)
    entry: dict[str, Any] = {}
    if operands:
        entry["in"] = one_or_list([value for _, value in operands])
    entry |= {
        attr.name: arguments[attr.name]
        for attr in declared.attrs
        if attr.name in arguments and not _is_default(arguments[attr.name], attr)
    }
    if arguments.get("params"):
        entry["params"] = arguments["params"]
    if arguments.get("out") is not None:
        entry["out"] = arguments["out"]
    recorded = program.record(kind, entry, arguments.get("name"))
    if isinstance(declared, Declaration) and declared.operand_names is not None:
        _check_operand_order(declared, [key for key, _ in operands], recorded, program)
    return recorded.values


def _flatten_operands(
    declared: OpKind, arguments: Mapping[str, Any]
) -> list[tuple[str, Variable]]:
    operands = []
    for key in (o.name for o in declared.operands if not o.parameter):
        value = arguments.get(key)
        if value is None:
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(each, Variable):
                raise call_error(
                    f"'{key}' of {declared.kind} must be a value of the program, not"
                    f" {describe_value(each)}"
                )
            operands.append((key, each))
    return operands


def _is_default(value: object, attr: Attr) -> bool:
    default = attr.default
    if attr.required or isinstance(value, bool) != isinstance(default, bool):
        return False
    return bool(value == default)


def _check_operand_order(
    declared: Declaration, names: list[str], recorded: OpRecord, program: Program
) -> None:
    """Raise SpecError if a spec would mistake an optional operand for another
    operand.
    """
    assert declared.operand_names is not None
    op = recorded.ops[-1]
    types = [program.type_of(name) for name in op.operands]
    order = list(declared.operand_names(types))[: len(names)]
    if order != names:
        program.remove_last()
        raise call_error(
            f"the operands of {declared.kind} are positional: {', '.join(names)} would"
            f" be read as {', '.join(order)}",
            "pass the preceding operands too",
        )
