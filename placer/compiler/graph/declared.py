"""What the rules in the declaration of a computed op are called with."""

from __future__ import annotations

from typing import Any

from placer import ops
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import declared_attrs
from placer.ops.attributes import complete
from placer.ops.declaration import Declaration
from placer.ops.registry import DECLARATIONS
from placer.place.types import TensorType


def declared(
    graph: Graph, op: Op
) -> tuple[Declaration, list[TensorType], dict[str, Any]]:
    """Return the declaration of a forward op, the types of its operands, and all of its
    attributes, with defaults."""
    declaration = ops.find(op.kind)
    attrs = complete(declaration, declared_attrs(op.attrs))
    return declaration, graph.operand_types(op), attrs


def works_by_rows(graph: Graph, op: Op) -> bool:
    """Whether each row of the results depends on the same row of the operands only."""
    if not op.is_computed:
        return False
    declaration, types, attrs = declared(graph, op)
    has_rows = any(each.has_rows for each in types)
    return has_rows and declaration.batch_rule(types, attrs) == "rows"


def calls_user_code(op: Op) -> bool:
    """Whether the op calls a function of a module of the spec."""
    declaration = DECLARATIONS.get(op.kind)  # an op of the compiler may have none
    return declaration is not None and declaration.calls_user_code
