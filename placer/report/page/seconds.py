"""Finds the calls of a node program that run a box, and their measured time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from placer.compiler.graph.graph import Op
from placer.plan.plan import NodePlan, Plan
from placer.plan.table_text import name_tables
from placer.report.page.boxes import Box
from placer.report.step.facts import StepTime

_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "read": ("read",),
    "parameter": ("parameters",),
    "local_parameter": ("parameters", "merge"),
    "sum_by_key": ("sum_by_key",),
    "exact_squares": ("exact_squares", "exact_squares_of_rows"),
    "assemble": ("assemble_parameter",),
    "sum_microbatches": ("sum_microbatches", "microbatch_totals"),
}
"""The methods of a node that run an op, if their names differ from the op's kind."""
_UPDATES: Final = ("update", "update_from_edges", "update_from", "update_rows")


def calls_of_boxes(
    boxes: Sequence[Box],
    nodes: Sequence[Sequence[str]],
    firsts: Sequence[Sequence[str]],
    plan: Plan,
    step_time: StepTime | None,
) -> list[tuple[tuple[str, ...], float | None]]:
    """Return the calls of each box, and their time in the median step.

    The time is the mean over the nodes that run the box in this step. Boxes that share a
    call divide its time in proportion to their numbers of ops. Only a trace contains the
    calls of methods.

    Args:
        boxes: the boxes.
        nodes: the nodes of each column.
        firsts: for each column, a node of each group of equal nodes.
        plan: the plan.
        step_time: the measured times; None without a trace.
    """
    plans = {node.name: node for node in plan.nodes}
    sparse = _texts_of_tables(plan)
    calls = [
        _calls(
            box,
            [plans[name] for name in firsts[box.column]],
            sparse,
            step_time is not None,
        )
        for box in boxes
    ]
    if step_time is None:
        return [(tuple(found), None) for found in calls]
    weights: dict[tuple[str, str], int] = {}
    for box, found in zip(boxes, calls, strict=True):
        for node in nodes[box.column]:
            for name, ops in found.items():
                weights[node, name] = weights.get((node, name), 0) + ops
    return [
        _measured(found, nodes[box.column], weights, step_time)
        for box, found in zip(boxes, calls, strict=True)
    ]


def _measured(
    calls: Mapping[str, int],
    nodes: Iterable[str],
    weights: Mapping[tuple[str, str], int],
    step_time: StepTime,
) -> tuple[tuple[str, ...], float | None]:
    seconds = []
    names: dict[str, None] = {}
    for node in nodes:
        measured = step_time.measured.get(node, {})
        own = [name for name in calls if name in measured]
        if own:
            names.update(dict.fromkeys(own))
            seconds.append(
                sum(measured[name] * calls[name] / weights[node, name] for name in own)
            )
    return tuple(names), sum(seconds) / len(seconds) if names else None


def _calls(
    box: Box,
    nodes: Sequence[NodePlan],
    sparse: Mapping[str, Sequence[str]],
    with_methods: bool,
) -> dict[str, int]:
    """Return the calls that may run a box, with the number of its ops that each runs."""
    segments: dict[int, int] = {}
    others: list[Op] = []
    for op in box.ops:
        if op.is_computed:
            segment = op.attrs.get("segment", -1)
            segments[segment] = segments.get(segment, 0) + 1
        else:
            others.append(op)
    calls = {
        name: segments[segment]
        for node in nodes
        for name, segment in node.functions.items()
        if segment in segments
    }
    if with_methods:
        tables = {
            block.name: [table.name]
            for node in nodes
            for table in node.tables
            for block in table.blocks
        }
        for op in others:
            for name in _methods(op, {**tables, **sparse}):
                calls[name] = calls.get(name, 0) + 1
    return calls


def _texts_of_tables(plan: Plan) -> dict[str, list[str]]:
    """Return the texts in calls that look up or update each sparse table: its name, or a text
    for all tables over its keys, or for those that are trained."""
    trained = {table.name for table in plan.sparse_tables if table.trainable}
    texts = {}
    for table in plan.sparse_tables:
        groups = [table.over, [name for name in table.over if name in trained]]
        texts[table.name] = [table.name, *map(name_tables, filter(None, groups))]
    return {name: [*dict.fromkeys(each)] for name, each in texts.items()}


def _methods(op: Op, tables: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the names of calls of methods that may run an op, as a trace has them."""
    structure = op.structure
    if structure.update is not None or op.kind == "store":
        texts = tables.get(op.operands[0], [op.operands[0]])
        methods: tuple[str, ...] = ("store",)
        if structure.update == "direction":
            methods = ("compute_directions",)
        elif structure.update is not None:
            methods = *_UPDATES, "apply_directions"
        for method in methods:
            yield from (f"{method} {text}" for text in texts)
    elif op.kind == "distinct_keys":
        yield f"{op.kind} {name_tables(op.attrs['tables'])}"
    elif op.kind == "distributed_lookup_table":
        yield from (f"{op.kind} {text}" for text in tables[op.operands[0]])
    elif op.exchange is not None and op.exchange.handling == "adds":
        yield "add_to_sums"
    elif not (structure.sends or structure.receives or structure.directive):
        yield from _METHODS.get(op.kind, (op.kind,))
