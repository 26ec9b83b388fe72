"""Splits the functions of a lowered step so that each computes one piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.placing.pieces import group_of, is_timed


def split_groups(graph: Graph, groups: Mapping[str, str]) -> Graph:
    """Return the graph of a step in which each function is of one movable group.

    A function has the forward ops of a group, or its gradients, or both if nothing is
    between them. If other groups are between the ops of a group, each op has a function.
    Ops without a group stay with the op before them. The results do not change.

    Args:
        graph: the graph of a step after the last pass, for one process.
        groups: the group of each forward op by name; an op that is missing is a group of
            its own.
    """
    timed = [op for op in graph.ops if is_timed(op)]
    of_op = {op: group_of(graph, op, groups) for op in timed}
    runs = Counter(
        key for key, _ in groupby(timed, lambda op: (of_op[op], op.is_gradient))
    )
    ops: list[Op] = []
    number, last = 0, ""
    for op in graph.ops:
        if (group := of_op.get(op)) is not None:
            name = group if runs[group, op.is_gradient] == 1 else op.name
            if name != last:
                # The first has the level of the reads before it.
                number, last = number + bool(last), name
        if "segment" in op.attrs:  # also other ops in the loop over microbatches
            op = op.with_attrs(segment=number)
        ops.append(op)
    return graph.with_ops(ops)
