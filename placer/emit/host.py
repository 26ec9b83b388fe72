"""What one host does in one graph: its ops, in order, in units to be emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placer.graph.graph import Graph, Op
from placer.passes.segment import constants_of_evaluation, is_computed, is_once


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive ops that become one statement or one jitted function.

    `computed` units are segments: `inputs` are the values they take, `outputs` those
    that a later unit of the host needs. `once` units of an evaluation run before its
    first batch.
    """

    ops: tuple[Op, ...]
    computed: bool
    once: bool
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def units(graph: Graph, host: str) -> tuple[Unit, ...]:
    """The host's part of a segmented graph. Empty when it has none."""
    mine = [op for op in graph.ops if host in graph.hosts(op)]
    once = constants_of_evaluation(graph)
    groups = list(_groups(mine, once))
    here = {value.name for op in mine for value in op.results}
    last_use: dict[str, int] = {}
    for i, group in enumerate(groups):
        for op in group:
            for name in op.operands:
                last_use[name] = i
    return tuple(
        _unit(group, i, here, last_use, is_once(group[0], once))
        for i, group in enumerate(groups)
    )


def _groups(mine: Sequence[Op], once: frozenset[str]) -> Iterator[tuple[Op, ...]]:
    group: list[Op] = []
    for op in mine:
        if group and not _together(group[-1], op, once):
            yield tuple(group)
            group = []
        group.append(op)
    if group:
        yield tuple(group)


def _together(a: Op, b: Op, once: frozenset[str]) -> bool:
    if is_once(a, once) != is_once(b, once):
        return False
    if is_computed(a) and is_computed(b):
        return bool(a.attrs["segment"] == b.attrs["segment"])
    return a.kind == b.kind and a.kind in ("read", "parameter", "record")


def _unit(
    group: tuple[Op, ...], at: int, here: set[str], last_use: dict[str, int], once: bool
) -> Unit:
    if not is_computed(group[0]):
        return Unit(group, computed=False, once=once)
    made = {value.name for op in group for value in op.results}
    inputs = dict.fromkeys(
        name
        for op in group
        for name in op.operands
        if name not in made and name in here
    )
    outputs = tuple(
        value.name
        for op in group
        for value in op.results
        if last_use.get(value.name, -1) > at
    )
    return Unit(group, True, once, tuple(inputs), outputs)
