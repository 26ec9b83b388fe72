"""Reads the section `predict`: the outputs of predictions."""

from __future__ import annotations

from placer.compiler.frontend.entries.context import Context
from placer.compiler.frontend.schema import Predict
from placer.compiler.frontend.sections.outputs import output_op, output_ops
from placer.compiler.frontend.yaml.decode import decode
from placer.compiler.frontend.yaml.tree import (
    MappingNode,
    ScalarNode,
    SpecNode,
    as_list,
)
from placer.compiler.graph.graph import Op


def read_predict(section: SpecNode | None, context: Context) -> list[Op]:
    """Return the `output` ops of the section `predict`. The graph must be complete. If
    an input is an output, the op that reads it is added."""
    if section is None:
        return []
    values = context.values
    good = decode(section, Predict, "predict", context.problems)
    if not isinstance(section, MappingNode) or "outputs" not in good:
        return []
    ops = []
    for node in as_list(section.entries["outputs"]):
        assert isinstance(node, ScalarNode)
        if node.text in values.inputs and values.lookup(node, "predict") is None:
            continue  # The input has an error.
        if not values.is_invalid(node.text) or node.text in values.types:
            ops.append(output_op(node.text, node.inner_span))
    return [*output_ops(ops, values.types, context.problems)]
