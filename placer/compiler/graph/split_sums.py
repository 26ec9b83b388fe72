"""Splits a sum of squares over several places into one sum for each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from placer.compiler.graph.graph import Op
from placer.place import Cluster, Place


def sums_at_places(op: Op, operands: Mapping[Place, Sequence[str]]) -> list[Op]:
    """Return one sum of squares for each place, over the operands at that place."""
    sums = []
    for i, (at, names) in enumerate(operands.items()):
        name = op.name if len(operands) == 1 else f"{op.name}.{i}"
        results = (replace(op.result, name=name),)
        sums.append(replace(op, operands=tuple(names), results=results, place=at))
    return sums


def combine_sums(cluster: Cluster, op: Op, sums: Sequence[Op]) -> Op:
    """Return `op`, such as a scale, with these sums as its operands."""
    at = cluster.place_of_sum(each.known_place for each in sums)
    return replace(op, operands=tuple(each.name for each in sums), place=at)
