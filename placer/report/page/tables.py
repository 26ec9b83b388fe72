"""The dense tables of each node, and the reason for an uneven share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from placer.compiler.graph.graph import Graph
from placer.place.ids import format_nodes
from placer.plan.plan import NodePlan, Plan
from placer.plan.settings.training.slicing import Block
from placer.report.numbers import format_size
from placer.report.page.facts import SparseTableRow, TableRow
from placer.report.run_files import RunEnd
from placer.report.server_tables import block_bytes, item_bytes, stored_by_kind
from placer.report.slicing_reasons import why_larger

_MOST_NODES = 4
BALANCED = 1.05
"""The largest share that counts as balanced, relative to the mean of all nodes."""


def table_rows(plan: Plan) -> tuple[TableRow, ...]:
    """Return the blocks that each node stores, without workers' own copies, optimizer
    slots and sparse tables. Nodes with equal blocks share a row."""
    return tuple(_rows(plan))


def _rows(plan: Plan) -> Iterator[TableRow]:
    for loads in stored_by_kind(plan).values():
        mean = sum(loads.values()) / len(loads)
        equal: dict[tuple[tuple[str, ...], int], list[str]] = {}
        for name, nbytes in loads.items():
            blocks = tuple(block.name for block in _blocks(plan.node(name)))
            equal.setdefault((blocks, nbytes), []).append(name)
        for (blocks, nbytes), names in equal.items():
            share = nbytes / mean if mean else 1.0
            yield TableRow(format_nodes(names), blocks, nbytes, share)


def _blocks(node: NodePlan) -> list[Block]:
    tables = [table for table in node.tables if not table.local]
    return [block for table in tables for block in table.blocks]


def sparse_rows(plan: Plan, end: RunEnd) -> tuple[SparseTableRow, ...]:
    """Return the sparse tables of a plan, with their sizes at the end of a run."""
    return tuple(
        SparseTableRow(
            table.name,
            format_nodes(table.holders),
            size.rows if (size := end.tables.get(table.name)) else None,
            size.nbytes if size else None,
            end.table_bytes.get(table.name, {}),
        )
        for table in plan.sparse_tables
    )


def memory_of_rows(tables: Sequence[SparseTableRow]) -> str:
    """Return the memory of sparse tables on each node as sentences, or why it is unknown."""
    on = Counter[str]()
    for table in tables:
        on.update(table.bytes_on)
    if not on:
        return "Rows of sparse tables are not included. Their number is known only after a run."
    listed = [f"{format_size(nbytes)} on {node}" for node, nbytes in on.items()]
    if len(listed) > _MOST_NODES:
        low, high = format_size(min(on.values())), format_size(max(on.values()))
        listed = [f"{low} to {high} on each of {len(on)} nodes"]
    return (
        "The bars do not include the rows of sparse tables. At the end of the run, these"
        f" took {', '.join(listed)}."
    )


def is_balanced(plan: Plan) -> bool:
    """Return True if no node stores much more than the mean of its kind."""
    return all(
        len(loads) * max(loads.values()) <= BALANCED * sum(loads.values())
        for loads in stored_by_kind(plan).values()
    )


def balance_of(plan: Plan, graph: Graph) -> str:
    """Return why nodes store different amounts, as sentences; empty if balanced.

    Args:
        plan: the plan of a build.
        graph: the graph of a training step after the last pass.
    """
    sentences = (
        _balance(plan, graph, loads) for loads in stored_by_kind(plan).values()
    )
    return " ".join(filter(None, sentences))


def _balance(plan: Plan, graph: Graph, loads: Mapping[str, int]) -> str:
    mean = sum(loads.values()) / len(loads)
    name = max(loads, key=loads.__getitem__)
    if loads[name] <= BALANCED * mean:
        return ""
    items = item_bytes(plan)
    parameters = {parameter.name: parameter for parameter in plan.parameters}
    blocks = sorted(
        _blocks(plan.node(name)), key=lambda each: -block_bytes(each, items)
    )
    # The reason is the largest block that not all nodes share.
    unshared = (
        block
        for block in blocks
        if len(parameters[block.parameter].holders) < len(loads)
    )
    block = next(unshared, blocks[0])
    reason = why_larger(graph, parameters[block.parameter], block, list(loads))
    return (
        f"{name} stores {format_size(loads[name])} without slots,"
        f" {loads[name] / mean:.2f} times the mean of {format_size(mean)}: {reason}"
    )
