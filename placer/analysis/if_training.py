"""Choose one side of each `if_training` op, for a training step or an evaluation.

An `if_training` op is its first operand in a training step and its second operand in an
evaluation; its gradient is that of the first operand.
"""

from __future__ import annotations

from collections.abc import Callable

from placer.graph.graph import Graph, Op

IF_TRAINING = "if_training"


def is_metric(op: Op) -> bool:
    """Whether the op records a metric, not the loss that only training watches."""
    return op.kind == "record" and not op.attrs.get("watched")


def resolve_if_training(
    graph: Graph, operand_index: int, is_root: Callable[[Op], bool]
) -> tuple[Op, ...]:
    """Replace each `if_training` by one of its operands, and remove unneeded ops.

    `operand_index` is 0 for a training step and 1 for an evaluation. Returns the ops
    for which `is_root` is true and all ops that these need, in program order.
    """
    replacements: dict[str, str] = {}
    resolved: list[Op] = []
    for op in graph.ops:
        operands = op.operands
        if not replacements.keys().isdisjoint(operands):
            operands = tuple(replacements.get(name, name) for name in operands)
        if op.kind == IF_TRAINING:
            replacements[op.results[0].name] = operands[operand_index]
            continue
        if op.kind == f"{IF_TRAINING}.grad":
            replacements[op.results[0].name] = operands[-1]
            continue
        if operands is not op.operands:
            op = op.with_values(operands, op.results)
        if op.attrs.get("of") in replacements:
            op = op.with_attrs(of=replacements[op.attrs["of"]])
        resolved.append(op)
    needed: set[str] = set()
    needed_ops: list[Op] = []
    for op in reversed(resolved):
        if is_root(op) or any(value.name in needed for value in op.results):
            needed.update(op.operands)
            needed_ops.append(op)
    needed_ops.reverse()
    return tuple(needed_ops)
