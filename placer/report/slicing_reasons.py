"""Explains why blocks are on their servers, and why a parameter is cut or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod
from typing import Any

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.optax_groups import reason_for_whole
from placer.compiler.graph.stored_bytes import find_update, stored_bytes
from placer.compiler.graph.structural_ops import is_update
from placer.place.ids import format_nodes
from placer.place.node_kinds import SERVER, NodeId
from placer.plan.plan import Parameter
from placer.plan.settings.training.optimizers import is_two_phase
from placer.plan.settings.training.slicing import MIN_BLOCK, Block, slice_sizes
from placer.report.numbers import format_count, plural
from placer.system.listed import list_names

_MOST_NAMED = 8
"""The largest number of blocks and of servers that a line names."""


def explain_slicing(
    graph: Graph, parameter: Parameter, blocks: Sequence[str]
) -> Iterator[str]:
    """Yield why a parameter has its blocks, and why they are on their servers.

    Yield nothing for a parameter that is not trained, or not updated by servers.

    Args:
        graph: the graph of a training step after the last pass.
        parameter: a parameter of the plan.
        blocks: the names of its blocks.
    """
    update = find_update(graph, blocks[0])
    if update is None or update.known_place.node != SERVER:
        return
    name, group = parameter.name, update.attrs["group"]
    optimizer = graph.optimizers[group]
    servers = _servers(graph, optimizer, parameter)
    if len(servers) == 1:
        yield f"{name} is not cut: its optimizer has one server"
        return
    settings = optimizer.attrs["slicing"]
    together = _dispatched_with(graph, optimizer)
    match settings["dispatch"]:
        case "merged":
            total = sum(graph.tensor_type(each).numel() for each in together)
            yield (
                f"dispatch: merged cuts the {format_count(total)} elements of all"
                f" parameters into equal shares of {total // len(servers) + 1:,}"
            )
            return
        case "hash":
            yield "dispatch: hash chooses the server of a block by a hash of its name"
        case "round_robin":
            yield (
                f"dispatch: round_robin assigns {plural(len(together), 'block')} to"
                f" {len(servers):,} servers in turn"
            )
        case "balanced":
            yield _balanced(graph, blocks, servers)
    is_norm = is_two_phase(optimizer.attrs["rule"]) and graph.modes[group] is not None
    if is_norm or reason_for_whole(graph, update):
        block = Block(name, name, 0, prod(parameter.shape), parameter.shape)
        yield why_larger(graph, parameter, block, servers).removesuffix(".")
    elif len(blocks) < len(servers):
        yield _few_blocks(parameter, settings, len(servers)).removesuffix(".")
    else:
        yield _one_block_each(parameter, settings, len(servers))


def _servers(graph: Graph, optimizer: Op, parameter: Parameter) -> Sequence[NodeId]:
    """Return the servers over which the blocks of a parameter are distributed."""
    servers = graph.cluster.nodes(optimizer.known_place)
    if {node for node, _, _ in parameter.holders} <= {*servers}:
        return servers
    return graph.cluster.kind(SERVER).nodes()


def _dispatched_with(graph: Graph, optimizer: Op) -> list[str]:
    """Return the blocks that are distributed together with those of an optimizer."""
    place, slicing = optimizer.place, optimizer.attrs["slicing"]
    groups = {
        group
        for group, each in graph.optimizers.items()
        if each.place == place and each.attrs.get("slicing") == slicing
    }
    own = {op.name for op in graph.parameters}
    return [
        op.operands[0]
        for op in graph.ops
        if is_update(op.kind) and op.attrs["group"] in groups and op.operands[0] in own
    ]


def _balanced(graph: Graph, blocks: Sequence[str], servers: Sequence[NodeId]) -> str:
    """Return why `dispatch: balanced` chose the servers of blocks, with their bytes."""
    stored = stored_bytes(graph)
    loads: Counter[str] = Counter()
    for op in graph.parameters:
        for node in graph.nodes(op):
            loads[node] += stored[op.name]
    holders = {node for name in blocks for node in graph.nodes(graph.producers[name])}
    sizes = [f"{name} has {format_count(stored[name])} bytes" for name in blocks]
    full = [f"{n} stores {format_count(loads[n])}" for n in servers if n in holders]
    mean = sum(loads[node] for node in servers) // len(servers)
    return (
        "dispatch: balanced puts the largest block first, each on the server with the"
        f" fewest bytes. With slots, {list_names(sizes, _MOST_NAMED)};"
        f" {list_names(full, _MOST_NAMED)}; the mean of {len(servers):,} servers is"
        f" {format_count(mean)}"
    )


def why_larger(
    graph: Graph, parameter: Parameter, block: Block, nodes: Sequence[str]
) -> str:
    """Return why a block of the fullest node is not smaller, as sentences.

    Args:
        graph: the graph of a training step after the last pass.
        parameter: the parameter of the block.
        block: a block of the node that stores most.
        nodes: the nodes of its kind.
    """
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
        return _few_blocks(parameter, settings, len(nodes))
    return (
        f"{block.name} is its largest block, with {format_count(block.numel)} elements."
    )


def _one_block_each(
    parameter: Parameter, settings: Mapping[str, Any], servers: int
) -> str:
    """Return why a parameter has as many blocks as servers."""
    most, how = _most_blocks(prod(parameter.shape), settings)
    return (
        f"{parameter.name} has {servers:,} blocks of whole rows, one for each server:"
        f" {format_count(prod(parameter.shape))} elements / min_block"
        f" ({format_count(settings['min_block'])}), rounded {how}, allow"
        f" {plural(most, 'block')}"
    )


def _most_blocks(numel: int, settings: Mapping[str, Any]) -> tuple[int, str]:
    """Return the largest number of blocks of a parameter, and how it is rounded."""
    least = settings.get("min_block", MIN_BLOCK)
    if settings.get("rounding", "ceil") == "floor":
        return numel // least, "down"
    return ceil(numel / least), "up"


def _few_blocks(parameter: Parameter, settings: Mapping[str, Any], servers: int) -> str:
    """Return why a parameter has fewer blocks than servers, as sentences."""
    shape, numel = parameter.shape, prod(parameter.shape)
    count = len(parameter.holders)
    parts = "one block" if count == 1 else plural(count, "block")
    least = settings.get("min_block", MIN_BLOCK)
    most, how = _most_blocks(numel, settings)
    is_floor = how == "down"
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
