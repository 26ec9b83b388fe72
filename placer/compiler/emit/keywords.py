"""Writes the attributes of ops as keyword arguments of their functions."""

from __future__ import annotations

from collections.abc import Mapping

from placer import ops
from placer.compiler.emit.code import literal
from placer.compiler.graph.declared import declared, passed_attrs
from placer.compiler.graph.graph import Graph, Op
from placer.ops.declaration import takes_no_count


def keywords_of(op: Op, modules: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of an op as Python text, by name.

    Args:
        op: a computed op.
        modules: the name of each module of the spec in the program.
    """
    return {
        key: _attribute(op, key, value, modules)
        for key, value in passed_attrs(op).items()
    }


def as_arguments(keywords: Mapping[str, str]) -> list[str]:
    """Return keyword arguments: `heads=4`."""
    return [f"{key}={text}" for key, text in keywords.items()]


def function_attribute(op: Op) -> str | None:
    """Return the attribute that names the user's function, if the op calls one."""
    attrs = ops.find(op.kind).attrs
    return next((attr.name for attr in attrs if attr.is_function), None)


def takes_count(graph: Graph, op: Op) -> bool:
    """Whether the op's function takes the number of rows."""
    if ops.find(op.kind).takes_count is takes_no_count:
        return False
    declaration, types, attrs = declared(graph, op)
    return declaration.takes_count(types, attrs)


def _attribute(op: Op, key: str, value: object, modules: Mapping[str, str]) -> str:
    if key == function_attribute(op):
        module, _, name = str(value).partition(":")
        return f"{modules[module]}.{name}"
    if op.kind == "call" and key == "args":
        return repr(value)  # in single quotes, since it contains double ones
    return literal(value)
