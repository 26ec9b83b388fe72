"""Resolves `if_training` ops, for a training step or an evaluation.

An `if_training` op has the value of its first operand in training, and of its second in
evaluation. Its gradient is the gradient of the first operand.
"""

from __future__ import annotations

from collections.abc import Callable

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import OUTPUT

IF_TRAINING = "if_training"


def is_metric(op: Op) -> bool:
    """Return True if the op records a metric that evaluations compute too."""
    return op.kind == "record" and not op.attrs.get("watched")


def is_output(op: Op) -> bool:
    """Return True if the op outputs a value of a prediction."""
    return op.kind == OUTPUT


def is_training_effect(op: Op) -> bool:
    """Return True if a training step runs the op even when its results are unused."""
    return op.structure.effect and not is_output(op)


def resolve_if_training(
    graph: Graph, operand_index: int, is_root: Callable[[Op], bool]
) -> list[Op]:
    """Replace each `if_training` by one of its operands, and remove unneeded ops.

    Args:
        graph: The graph.
        operand_index: 0 for a training step, 1 for an evaluation or a prediction.
        is_root: Whether an op must be kept.

    Returns:
        The roots and all ops that they need, in program order.
    """
    replacements: dict[str, str] = {}
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.forward_kind == IF_TRAINING:
            name = op.operands[-1 if op.is_gradient else operand_index]
            replacements[op.name] = replacements.get(name, name)
            rewriter.erase()
            continue
        if op.attrs.get("of") in replacements:
            rewriter.replace(op.with_attrs(of=replacements[op.attrs["of"]]))
        rewriter.replace_operands(replacements)
    return needed_ops(rewriter.graph().ops, is_root)
