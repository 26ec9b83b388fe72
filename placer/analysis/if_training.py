"""What `train` and `evaluate` have in common: one side of each `if_training`.

An op of that kind stands for its first operand in a training step and for its second
in an evaluation; its gradient is that of the first.
"""

from __future__ import annotations

from collections.abc import Callable

from placer.graph.graph import Graph, Op

CHOICE = "if_training"


def resolved(graph: Graph, side: int, is_root: Callable[[Op], bool]) -> tuple[Op, ...]:
    """The ops that the roots need, every choice replaced by its operand `side`."""
    names: dict[str, str] = {}
    found: list[Op] = []
    for op in graph.ops:
        operands = tuple(names.get(name, name) for name in op.operands)
        if op.kind == CHOICE:
            names[op.results[0].name] = operands[side]
            continue
        if op.kind == f"{CHOICE}.grad":
            names[op.results[0].name] = operands[-1]
            continue
        if operands != op.operands:
            op = op.of(operands, op.results)
        if op.attrs.get("of") in names:
            op = op.with_attrs(of=names[op.attrs["of"]])
        found.append(op)
    needed: set[str] = set()
    kept: list[Op] = []
    for op in reversed(found):
        if is_root(op) or any(value.name in needed for value in op.results):
            needed.update(op.operands)
            kept.append(op)
    kept.reverse()
    return tuple(kept)
