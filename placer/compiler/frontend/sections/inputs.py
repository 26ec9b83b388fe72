"""Reads the section `inputs`: the names and types of inputs."""

from __future__ import annotations

from msgspec.structs import replace

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.entries.op_parameters import graph_type
from placer.compiler.frontend.entries.types import read_type
from placer.compiler.frontend.yaml.problems import Problems, inner_span
from placer.compiler.frontend.yaml.tree import MappingNode, SpecNode
from placer.place.types import BATCH, TensorType


def declare_inputs(
    section: SpecNode | None, context: Context
) -> dict[str, TensorType | None]:
    """Declare the inputs of a section, with their types in the graph. Returns the type
    of each input as written; None for an input with an error."""
    expected, hint = "'inputs' must be a mapping", 'write image: "float32[batch, 64]"'
    problems, wide = context.problems, context.is_float64
    section = problems.expect(section, MappingNode, expected, hint)
    if section is None:
        return {}
    types: dict[str, TensorType | None] = {}
    for name, node in section:
        key = section.keys[name]
        if context.names.check(name, key):
            context.names.define(name, key.span)
        type_ = _input_type(name, node, problems)
        if type_ is not None and type_.dtype == "float64" and not wide:
            message = f"input '{name}' is float64, but the precision is float32"
            narrow = replace(type_, dtype="float32")
            hint = f"declare it {narrow}, or write precision: float64"
            problems.add(message, node.span, hint)
            type_ = None
        types[name] = type_
        in_graph = None if type_ is None else graph_type(type_, wide)
        context.values.declare_input(name, in_graph, key.span, type_)
    return types


def _input_type(name: str, node: SpecNode, problems: Problems) -> TensorType | None:
    """Return the type of an input; None after an error. Its first dimension must be
    `batch`, and its other dimensions numbers."""
    expected = f"input '{name}' must be a type"
    hint = 'write for example "float32[batch, 64]"'
    type_ = read_type(node, problems, expected, hint)
    if type_ is None:
        return None
    message, advice = "", None
    if type_.dtype == "key":
        message = "'key' is not a dtype"
    elif not type_.has_rows or BATCH in type_.shape[1:]:
        message = (
            "the first dimension of an input must be 'batch', and its other"
            f" dimensions must be numbers: {type_}"
        )
        shape = ", ".join([BATCH, *(str(d) for d in type_.shape if d != BATCH)])
        advice = None if 0 in type_.shape else f"write {type_.dtype}[{shape}]"
    elif 0 in type_.shape:
        message = f"a dimension of {type_} is 0"
    if message:
        problems.add(message, inner_span(node), advice)
        return None
    return type_
