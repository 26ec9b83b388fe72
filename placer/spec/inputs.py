"""Declares the inputs of a model: their names, and their types in the graph."""

from __future__ import annotations

from placer.spec.names import Names
from placer.spec.op_parameters import graph_type
from placer.spec.problems import Problems
from placer.spec.sections.data import read_inputs
from placer.spec.tree import MappingNode, SpecNode
from placer.spec.values import Values
from placer.types import TensorType


def declare_inputs(
    section: SpecNode | None,
    wide: bool,
    names: Names,
    values: Values,
    problems: Problems,
) -> dict[str, TensorType | None]:
    """Declare the inputs of a section; return their types as `read_inputs` does."""
    types = read_inputs(section, wide, names, problems)
    if isinstance(section, MappingNode):
        for name, type_ in types.items():
            in_graph = None if type_ is None else graph_type(type_, wide)
            values.declare_input(name, in_graph, section.keys[name].span)
    return types
