"""The dense tables of each node, and the reason for an uneven share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod
from typing import Any

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.optax_groups import reason_for_whole
from placer.compiler.graph.stored_bytes import find_update
from placer.place.ids import format_nodes
from placer.place.node_kinds import SERVER, NodeId
from placer.plan.plan import NodePlan, Parameter, Plan
from placer.plan.settings.training.optimizers import is_two_phase
from placer.plan.settings.training.slicing import MIN_BLOCK, Block, slice_sizes
from placer.report.numbers import format_count, format_size, plural
from placer.report.page.facts import SparseTableRow, TableRow
from placer.report.run_files import StoredRows
from placer.report.server_tables import block_bytes, item_bytes, stored_by_kind

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


def sparse_rows(
    plan: Plan, sizes: Mapping[str, StoredRows]
) -> tuple[SparseTableRow, ...]:
    """Return the sparse tables of a plan.

    Args:
        plan: the plan of a build.
        sizes: the sizes at the end of a run, by table.
    """
    return tuple(
        SparseTableRow(
            table.name,
            format_nodes(table.holders),
            size.rows if (size := sizes.get(table.name)) else None,
            size.nbytes if size else None,
        )
        for table in plan.sparse_tables
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
    reason = _reason(graph, parameters[block.parameter], block, list(loads))
    return (
        f"{name} stores {format_size(loads[name])},"
        f" {loads[name] / mean:.2f} times the mean of {format_size(mean)}: {reason}"
    )


def _reason(
    graph: Graph, parameter: Parameter, block: Block, nodes: Sequence[str]
) -> str:
    """Return why a block of the fullest node is not smaller, as sentences."""
    name = parameter.name
    if NodeId(nodes[0]).kind != SERVER:
        return (
            f"it stores {name}, and only servers (nodes of kind ps) share parameters."
        )
    group = graph.producers[block.name].attrs.get("group")
    if group is None:
        return f"{name} is not trained, and only trained parameters are divided."
    optimizer = graph.optimizers[group]
    rule, place = optimizer.attrs["rule"], optimizer.place
    servers = nodes if place is None else graph.cluster.nodes(place)
    holders = {node for node, _, _ in parameter.holders}
    if len(servers) < len(nodes) and holders <= set(servers):
        return f"the spec places the optimizer of {name} on {format_nodes(servers)}."
    settings: Mapping[str, Any] = optimizer.attrs.get("slicing", {})
    dispatch = settings.get("dispatch", "balanced")
    if dispatch == "merged":
        return (
            "'dispatch: merged' gives each server the same number of elements, and the"
            " elements have different sizes."
        )
    if is_two_phase(rule) and graph.modes[group] is not None:
        return (
            f"{name} is one block, because an asynchronous {rule} needs the norm of the"
            " whole parameter."
        )
    update = find_update(graph, block.name)
    if update is not None and (why := reason_for_whole(graph, update)):
        return f"{name} is {why}."
    if dispatch != "balanced":
        how = "in turn" if dispatch == "round_robin" else "by a hash of their names"
        return (
            f"'dispatch: {dispatch}' assigns blocks to servers {how}, without regard to"
            " their sizes. 'train.slicing.dispatch: balanced' assigns them by size."
        )
    if len(parameter.holders) < len(nodes):
        return _uncut(parameter, settings, len(nodes))
    return (
        f"{block.name} is its largest block, with {format_count(block.numel)} elements."
    )


def _uncut(parameter: Parameter, settings: Mapping[str, Any], servers: int) -> str:
    """Return why a parameter has fewer blocks than servers, as sentences."""
    shape, numel = parameter.shape, prod(parameter.shape)
    count = len(parameter.holders)
    parts = "one block" if count == 1 else plural(count, "block")
    least = settings.get("min_block", MIN_BLOCK)
    is_floor = settings.get("rounding", "ceil") == "floor"
    most = numel // least if is_floor else ceil(numel / least)
    if count < servers <= most:
        rows = plural(shape[0], "row")
        return (
            f"{parameter.name} is {parts}: it has {rows}, and blocks have whole rows."
        )
    times = f"{most} x " if most > 1 else ""
    bound = f"fewer than {max(1, most) + 1} x " if is_floor else f"at most {times}"
    enough = _smaller_block(shape, servers, is_floor=is_floor)
    advice = (
        f" 'train.slicing.min_block: {enough}' divides it over {servers:,} servers."
    )
    return (
        f"{parameter.name} is {parts}, because its {format_count(numel)} elements are"
        f" {bound}min_block ({format_count(least)}).{advice if enough else ''}"
    )


def _smaller_block(shape: Sequence[int], servers: int, *, is_floor: bool) -> int:
    """Return the largest `min_block` that divides a parameter over all servers, or 0."""
    enough = prod(shape) // servers
    if not enough:
        return 0
    sizes = slice_sizes(shape, servers, enough, "floor" if is_floor else "ceil")
    return enough if len(sizes) == servers else 0
