"""Choose one side of each `if_training` op, for a training step or an evaluation.

An `if_training` op is its first operand in a training step and its second operand in an
evaluation; its gradient is that of the first operand.
"""

from __future__ import annotations

from collections.abc import Callable

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.needed_ops import needed_ops
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_ops import OUTPUT

IF_TRAINING = "if_training"


def is_metric(op: Op) -> bool:
    """Whether the op records a metric, not the loss that only training watches."""
    return op.kind == "record" and not op.attrs.get("watched")


def is_output(op: Op) -> bool:
    """Whether the op returns a value from a prediction."""
    return op.kind == OUTPUT


def is_training_effect(op: Op) -> bool:
    """Whether a training step runs the op even if its results are not used."""
    return op.structure.effect and not is_output(op)


def resolve_if_training(
    graph: Graph, operand_index: int, is_root: Callable[[Op], bool]
) -> list[Op]:
    """Replace each `if_training` by one of its operands, and remove unneeded ops.

    `operand_index` is 0 for a training step, 1 for an evaluation and a prediction. Returns the ops
    for which `is_root` is true and all ops that these need, in program order.
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
