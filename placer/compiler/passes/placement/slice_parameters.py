"""slice: slice the parameters on servers into blocks, with an update for each block.

Needs a placed graph. Afterwards each parameter with an optimizer on servers has one
`parameter` op per block, `%h1.w.block0`, on the server of the block, with its update and
store. `cut` takes a block's range of the gradient where the gradient is computed.
`assemble` joins the blocks where the parameter is used. A norm over several servers is a
sum of partial sums, at the first server. A parameter with a single block keeps its name,
and its gradient is not cut. Asynchronous updates by a rule that needs norms keep each
parameter in one block.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.graph.optax_groups import reason_for_whole
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.split_sums import combine_sums, sums_at_places
from placer.compiler.graph.stored_bytes import stored_bytes
from placer.compiler.graph.structural_ops import SCALES, is_optimizer_part, is_update
from placer.compiler.passes.gradients.updates import owning_parameters
from placer.errors import GraphError
from placer.place import SERVER, Place
from placer.place.types import TensorType
from placer.plan.settings.training import optimizers, slicing
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.update_modes import name_of

Placement = tuple[tuple[Block, Place], ...]
"""The blocks of a parameter, each with its server's place."""


Assembled = dict[str, dict[str, tuple[str, Place]]]
"""The name and place of each assembled parameter, by parameter and by node kind of its
users."""


def slice_parameters(graph: Graph) -> Graph:
    """Run the pass."""
    placements = _place_blocks(graph)
    if not placements:
        return graph
    assembled = _assembled_parameters(graph, placements)
    # Gradients and update directions are sliced like their parameters.
    value_placements = {
        value: placements[parameter]
        for value, parameter in owning_parameters(graph).items()
        if parameter in placements
    }
    partial_sums: dict[str, list[Op]] = {}  # sums of squares, by original name
    why_whole = {
        name: why
        for update in graph.ops
        if is_update(update.kind) and (name := update.operands[0]) in placements
        if (why := reason_for_whole(graph, update))
    }
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.kind == "parameter" and op.name in placements:
            wholes = assembled.get(op.name, {}).values()
            kept = replace(op, why=why_whole.get(op.name, op.why))
            rewriter.replace(*_parameter_ops(kept, placements[op.name], wholes))
        elif is_optimizer_part(op.kind) and op.operands[0] in value_placements:
            if op.kind in ("sum_of_squares", "exact_squares"):
                partial_sums[op.name] = _sums_of_squares(op, value_placements)
                rewriter.replace(*partial_sums[op.name])
            else:
                rewriter.replace(*_ops_by_block(op, value_placements))
        elif op.kind == "store" and op.operands[0] in placements:
            rewriter.replace(*_stores(op, placements[op.operands[0]]))
        elif op.kind in SCALES:
            rewriter.replace(_scale(graph, op, partial_sums))
        elif op.kind == "rounded_sum":
            parts = [
                part
                for name in op.operands
                for part in partial_sums.get(name, (graph.producers[name],))
            ]
            combined = combine_sums(graph.cluster, op, parts)
            partial_sums[op.name] = [combined]
            rewriter.replace(combined)
        elif op.kind == "local_parameter" and op.operands[0] in placements:
            (name,) = op.operands
            blocks = tuple(block.name for block, _ in placements[name])
            rewriter.replace(op.with_operands(blocks))
        else:
            rewriter.replace(_with_assembled_operands(op, assembled))
            for value in op.results:
                if value.name in value_placements:
                    placement = value_placements[value.name]
                    rewriter.insert_after(*_cuts(graph, op, value, placement))
    return rewriter.graph()


def _place_blocks(graph: Graph) -> dict[str, Placement]:
    """Return the blocks of every parameter with an optimizer on servers."""
    updates = [
        op
        for op in graph.ops
        if is_update(op.kind)
        and op.known_place.node == SERVER
        and not is_keyed(graph, op.operands[0])
    ]
    if not updates:
        return {}
    groups: dict[tuple[Place, str], list[Op]] = defaultdict(list)
    for op in updates:
        groups[op.known_place, repr(_settings(graph, op))].append(op)
    placements: dict[str, Placement] = {}
    stored = stored_bytes(graph)
    load = _unsliced_load(graph, stored, {op.operands[0] for op in updates})
    # Parameters with only one possible server come first, so that the others are
    # dispatched around their load.
    for group in sorted(groups.values(), key=lambda ops: len(graph.nodes(ops[0])) > 1):
        placements |= _dispatch(graph, group, stored, load)
    return {op.operands[0]: placements[op.operands[0]] for op in updates}


def _settings(graph: Graph, update: Op) -> Mapping[str, Any]:
    """Return the `slicing` settings for the parameter of an update."""
    optimizer = graph.optimizers[update.attrs["group"]]
    settings: Mapping[str, Any] = optimizer.attrs.get("slicing", {})
    return settings


def _is_kept_whole(graph: Graph, update: Op) -> bool:
    """Whether a parameter stays whole: an optax optimizer needs all of it, or its
    asynchronous update needs norms, and servers do not wait for each other."""
    group = update.attrs["group"]
    rule = graph.optimizers[group].attrs["rule"]
    if optimizers.is_two_phase(rule):
        return graph.modes[group] is not None
    return bool(reason_for_whole(graph, update))


def _check_merged(graph: Graph, updates: Sequence[Op]) -> None:
    for op in updates:
        if _is_kept_whole(graph, op):
            optimizer = graph.optimizers[op.attrs["group"]]
            kept = f"'{op.operands[0]}'"
            if optimizer.attrs["rule"] == optimizers.OPTAX:
                what = f"optax optimizer {optimizer.attrs['fn']}"
            else:
                mode = name_of(optimizer.attrs["update"])
                what = f"'update: {mode}' with {optimizer.attrs['rule']}"
                kept = "each parameter"
            raise GraphError(
                f"{what} keeps {kept} on one server, but 'dispatch: merged' slices all"
                " parameters as one",
                span=optimizer.source,
                hint="use dispatch: balanced",
            )


def _unsliced_load(
    graph: Graph, stored: Mapping[str, int], updated: Container[str]
) -> Counter[str]:
    """Return the bytes of unsliced parameters on each server: those without an update there."""
    load: Counter[str] = Counter()
    for op in graph.parameters:
        if op.known_place.node == SERVER and op.name not in updated:
            for node in graph.nodes(op):
                load[node] += stored[op.name]
    return load


def _dispatch(
    graph: Graph, updates: list[Op], stored: Mapping[str, int], load: Counter[str]
) -> dict[str, Placement]:
    """Slice the parameters of some updates, and assign the blocks to servers."""
    # All updates are at one place with equal settings. `stored`: the bytes of each
    # parameter. `load`: the bytes on each server, to which the blocks are added.
    place, settings = updates[0].known_place, _settings(graph, updates[0])
    whole = {op.operands[0] for op in updates if _is_kept_whole(graph, op)}
    nodes = graph.cluster.nodes(place)
    servers = [graph.cluster.place_of((node,), place) for node in nodes]
    types = {op.operands[0]: graph.tensor_type(op.operands[0]) for op in updates}
    element_bytes = {
        name: stored[name] // max(1, tensor.numel()) for name, tensor in types.items()
    }
    dispatch = settings.get("dispatch", "balanced")
    if dispatch == "merged":
        _check_merged(graph, updates)
        shapes = [(name, tensor.sizes(1)) for name, tensor in types.items()]
        dispatched = list(slicing.slice_merged(shapes, len(servers)))
    else:
        given = {k: settings[k] for k in ("min_block", "rounding") if k in settings}
        blocks: list[slicing.Block] = []
        for name, tensor in types.items():
            shape = tensor.sizes(1)
            parts = 1 if name in whole else len(servers)
            sizes = slicing.slice_sizes(shape, parts, **given)
            blocks += slicing.make_blocks(name, shape, sizes)
        if dispatch == "balanced":
            sizes_in_bytes = [element_bytes[b.parameter] * b.numel for b in blocks]
            chosen = slicing.balance_by_size(
                sizes_in_bytes, [load[node] for node in nodes]
            )
        else:
            chosen = slicing.DISPATCH[dispatch](blocks, len(servers))
        dispatched = list(zip(blocks, chosen, strict=True))
    placements: dict[str, list[tuple[Block, Place]]] = {name: [] for name in types}
    for block, server in dispatched:
        placements[block.parameter].append((block, servers[server]))
        load[nodes[server]] += element_bytes[block.parameter] * block.numel
    return {name: tuple(placement) for name, placement in placements.items()}


def _assembled_parameters(
    graph: Graph, placements: Mapping[str, Placement]
) -> Assembled:
    """Return the assembled parameters, each at a place that contains all users of its node
    kind. Parameters with a single block are not assembled."""
    assembled: Assembled = defaultdict(dict)
    for parameter, placement in placements.items():
        if len(placement) == 1:
            continue
        user_places: dict[str, list[Place]] = defaultdict(list)
        for op in graph.uses.get(parameter, ()):
            if op.is_computed and not is_optimizer_part(op.kind):
                at = graph.cluster.host_memory(op.known_place)
                user_places[str(at.node)].append(at)
        for i, (kind, places) in enumerate(user_places.items()):
            place = graph.cluster.union(places)
            assert place is not None
            name = f"{parameter}.{i}" if i else parameter
            assembled[parameter][kind] = (name, place)
    return assembled


def _with_assembled_operands(op: Op, assembled: Assembled) -> Op:
    kind = str(op.known_place.node)
    names = [assembled.get(n, {}).get(kind, (n,))[0] for n in op.operands]
    return op.with_operands(tuple(names))


def _block_type(block: Block, whole: Value) -> TensorType:
    """Return the type of a block: flat, or the parameter's type for a single block."""
    assert isinstance(whole.type, TensorType)
    if block.name == block.parameter:
        return whole.type
    return TensorType(whole.type.dtype, (block.numel,))


def _parameter_ops(
    op: Op, placement: Placement, assembled: Iterable[tuple[str, Place]]
) -> Iterator[Op]:
    """Yield the blocks of a parameter, and an `assemble` for each node kind of users."""
    whole = op.result.type
    assert isinstance(whole, TensorType)
    for block, at in placement:
        attrs = dict(op.attrs)
        if len(placement) > 1:
            attrs |= {"whole": op.name, "shape": whole.sizes(1)}
            attrs |= {"start": block.start, "stop": block.stop}
        value = Value(block.name, _block_type(block, op.result))
        yield replace(op, results=(value,), attrs=attrs, place=at)
    blocks = tuple(block.name for block, _ in placement)
    for name, place in assembled:
        yield Op("assemble", blocks, (Value(name, whole),), {}, place, op.source)


def _cuts(graph: Graph, op: Op, gradient: Value, placement: Placement) -> Iterator[Op]:
    """Yield the `cut` ops of a gradient."""
    if len(placement) == 1:
        return
    place = graph.cluster.host_memory(op.known_place)
    for i, (block, _) in enumerate(placement):
        value = Value(f"{gradient.name}.block{i}", _block_type(block, gradient))
        attrs = {"start": block.start, "stop": block.stop}
        yield Op("cut", (gradient.name,), (value,), attrs, place, op.source)


def _block_name(value: str, i: int, placement: Placement) -> str:
    """Return the name of a value's part for the i-th block."""
    return value if len(placement) == 1 else f"{value}.block{i}"


def _ops_by_block(op: Op, placements: Mapping[str, Placement]) -> Iterator[Op]:
    """Yield an elementwise optimizer op once per block."""
    # Unsliced values, such as scales, are operands of every block's op.
    for i, (block, at) in enumerate(placements[op.operands[0]]):
        operands = tuple(
            _block_name(name, i, placements[name]) if name in placements else name
            for name in op.operands
        )
        name = f"{block.name}.new"
        if not is_update(op.kind):
            name = _block_name(op.name, i, placements[op.operands[0]])
        result = replace(op.result, name=name, type=_block_type(block, op.result))
        yield replace(op, operands=operands, results=(result,), place=at)


def _stores(op: Op, placement: Placement) -> Iterator[Op]:
    for block, at in placement:
        yield replace(op, operands=(block.name, f"{block.name}.new"), place=at)


def _sums_of_squares(op: Op, placements: Mapping[str, Placement]) -> list[Op]:
    """Return one partial sum of squares per server."""
    blocks: dict[Place, list[str]] = defaultdict(list)
    for name in op.operands:
        for i, (_, at) in enumerate(placements[name]):
            blocks[at].append(_block_name(name, i, placements[name]))
    return sums_at_places(op, blocks)


def _scale(graph: Graph, op: Op, partial_sums: Mapping[str, Sequence[Op]]) -> Op:
    """Return the scale op with all partial sums as operands, at the first of their places."""
    # Partial sums are in node order. A clip scale has one norm over all operands, so its
    # partial sums are sorted together. The two norms of a trust ratio stay separate.
    order = {node: i for i, node in enumerate(graph.cluster.all_nodes())}
    squares = [
        part
        for name in op.operands
        for part in sorted(
            partial_sums.get(name, (graph.producers[name],)),
            key=lambda part: order[graph.nodes(part)[0]],
        )
    ]
    if op.kind == "clip_scale":
        squares.sort(key=lambda part: order[graph.nodes(part)[0]])
    return combine_sums(graph.cluster, op, squares)
