"""slice_parameters: cut parameters on servers into blocks, each with its update.

Needs a placed graph. Afterwards every parameter with an optimizer on servers is one
`parameter` op a block, `%h1.w.block0`, on the server that holds it; its gradient is
`cut` where it is made; `assemble` puts the parameter together where it is used; and a
norm over several servers is summed at the first. An uncut parameter keeps its name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from placer.analysis.stored_bytes import stored_bytes
from placer.config import slicing as cutting
from placer.config.slicing import Block
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import SCALES, is_optimizers, is_update
from placer.passes.place import first_node, joined
from placer.passes.updates import owners
from placer.place import SERVER, Place
from placer.types import TensorType


def slice_parameters(graph: Graph) -> Graph:
    sliced = _sliced(graph)
    if not sliced:
        return _without_recipes(graph)
    names = _names_where_used(graph, sliced)
    joined_at: dict[str, list[tuple[str, Place]]] = defaultdict(list)
    for (parameter, _), found in names.items():
        joined_at[parameter].append(found)
    held = {
        value: sliced[parameter]
        for value, parameter in owners(graph).items()
        if parameter in sliced
    }
    parts: dict[str, tuple[Op, ...]] = {}  # sums of squares, by the name of the whole
    out: list[Op] = []
    for op in graph.ops:
        if op.kind == "parameter" and op.name in sliced:
            out.extend(_parameter_blocks(op, sliced[op.name], joined_at[op.name]))
        elif is_optimizers(op.kind) and op.operands[0] in held:
            if op.kind == "sum_of_squares":
                parts[op.name] = tuple(_squares(op, held))
                out.extend(parts[op.name])
            else:
                out.extend(_blockwise(op, held))
        elif op.kind == "store" and op.operands[0] in sliced:
            out.extend(_stores(op, sliced[op.operands[0]]))
        elif op.kind in SCALES:
            out.append(_scale(graph, op, parts))
        else:
            out.append(_renamed(op, names))
            for value in op.results:
                if value.name in held:
                    out.extend(_cuts(graph, out[-1], value, held[value.name]))
    return _without_recipes(graph.with_ops(out))


Holding = tuple[tuple[Block, Place], ...]


def _sliced(graph: Graph) -> dict[str, Holding]:
    """The blocks of every parameter whose optimizer stands on servers, and where."""
    recipes = {op.attrs["group"]: op for op in graph.of_kind("optimizer")}
    updates = [
        op
        for op in graph.ops
        if is_update(op.kind) and op.place is not None and op.place.node == SERVER
    ]
    if not updates:
        return {}
    of_place: dict[tuple[Place, str], list[Op]] = defaultdict(list)
    for op in updates:
        assert op.place is not None
        slicing = recipes[op.attrs["group"]].attrs.get("slicing", {})
        of_place[op.place, repr(slicing)].append(op)
    holdings: dict[str, Holding] = {}
    stored = stored_bytes(graph)
    held = _held_whole(graph, stored, {op.operands[0] for op in updates})
    # What stands on one server comes first: the rest is dealt out around it.
    for place, written in sorted(
        of_place, key=lambda key: len(graph.cluster.nodes(key[0])) > 1
    ):
        found = of_place[place, written]
        slicing = recipes[found[0].attrs["group"]].attrs.get("slicing", {})
        holdings |= _dispatched(graph, place, found, slicing, stored, held)
    return {op.operands[0]: holdings[op.operands[0]] for op in updates}


def _held_whole(
    graph: Graph, stored: Mapping[str, int], updated: Container[str]
) -> Counter[str]:
    """Bytes of the parameters that lie on each server and are not cut, for nothing there
    updates them."""
    held: Counter[str] = Counter()
    for op in graph.of_kind("parameter"):
        if op.place is not None and op.place.node == SERVER and op.name not in updated:
            for node in graph.nodes(op):
                held[node] += stored[op.name]
    return held


def _dispatched(
    graph: Graph,
    place: Place,
    updates: list[Op],
    slicing: Mapping[str, object],
    stored: Mapping[str, int],
    held: Counter[str],
) -> dict[str, Holding]:
    """The blocks of parameters whose optimizers have a place in common. `stored` are
    the bytes of each parameter; `held` those on each server, which it adds to."""
    servers = [
        graph.cluster.canonical(replace(place, node_ids=(number,)))
        for number in dict.fromkeys(at.node_id for at in graph.cluster.resolve(place))
    ]
    nodes = graph.cluster.nodes(place)
    shapes = {op.operands[0]: graph.tensor(op.operands[0]) for op in updates}
    each = {  # bytes of an element
        name: stored[name] // max(1, kind.numel()) for name, kind in shapes.items()
    }
    dispatch = str(slicing.get("dispatch", "balanced"))
    if dispatch == "merged":
        sizes = [(name, kind.numel()) for name, kind in shapes.items()]
        placed = list(cutting.merged(sizes, len(servers)))
    else:
        found = [
            block
            for name, kind in shapes.items()
            for block in cutting.blocks(
                name,
                kind.sizes(1),
                len(servers),
                int(str(slicing.get("min_block", cutting.MIN_BLOCK))),
                "floor" if slicing.get("rounding") == "floor" else "ceil",
            )
        ]
        if dispatch == "balanced":
            loads = [each[block.parameter] * block.numel for block in found]
            chosen = cutting.balanced(loads, [held[node] for node in nodes])
        else:
            chosen = cutting.DISPATCH[dispatch](found, len(servers))
        placed = list(zip(found, chosen, strict=True))
    holding: dict[str, list[tuple[Block, Place]]] = {name: [] for name in shapes}
    for block, server in placed:
        holding[block.parameter].append((block, servers[server]))
        held[nodes[server]] += each[block.parameter] * block.numel
    return {name: tuple(found) for name, found in holding.items()}


def _names_where_used(
    graph: Graph, sliced: Mapping[str, Holding]
) -> dict[tuple[str, str], tuple[str, Place]]:
    """For each cut parameter and node kind that uses it: the name of the parameter put
    together there, and the place that holds every use."""
    names: dict[tuple[str, str], tuple[str, Place]] = {}
    for parameter, held in sliced.items():
        if len(held) == 1:
            continue
        places: dict[str, list[Place]] = defaultdict(list)
        for op in graph.uses.get(parameter, ()):
            if not is_optimizers(op.kind) and op.kind != "store":
                assert op.place is not None
                places[str(op.place.node)].append(graph.cluster.in_memory(op.place))
        for i, (kind, found) in enumerate(places.items()):
            where = joined(graph.cluster, found)
            assert where is not None
            names[parameter, kind] = (f"{parameter}.{i}" if i else parameter, where)
    return names


def _renamed(op: Op, names: Mapping[tuple[str, str], tuple[str, Place]]) -> Op:
    if op.place is None or not op.operands:
        return op
    kind = str(op.place.node)
    operands = tuple(
        names[name, kind][0] if (name, kind) in names else name for name in op.operands
    )
    return op if operands == op.operands else op.of(operands, op.results)


def _block_type(block: Block, whole: Value) -> TensorType:
    """Flat, or that of the whole tensor when the parameter is not cut."""
    assert isinstance(whole.type, TensorType)
    if block.name == block.parameter:
        return whole.type
    return TensorType(whole.type.dtype, (block.numel,))


def _parameter_blocks(
    op: Op, held: Holding, joined_at: Sequence[tuple[str, Place]]
) -> Iterator[Op]:
    """The blocks of a parameter, and what puts them together where it is used."""
    for block, at in held:
        cut = {} if len(held) == 1 else {"start": block.start, "stop": block.stop}
        yield replace(
            op,
            results=(Value(block.name, _block_type(block, op.result)),),
            attrs={**op.attrs, **cut},
            place=at,
        )
    for name, where in joined_at:
        yield Op(
            "assemble",
            tuple(block.name for block, _ in held),
            (Value(name, op.result.type),),
            {},
            where,
            op.source,
        )


def _cuts(graph: Graph, op: Op, gradient: Value, held: Holding) -> Iterator[Op]:
    if len(held) == 1:
        return
    assert op.place is not None
    where = graph.cluster.in_memory(op.place)
    for i, (block, _) in enumerate(held):
        value = Value(f"{gradient.name}.block{i}", _block_type(block, gradient))
        attrs = {"start": block.start, "stop": block.stop}
        yield Op("cut", (gradient.name,), (value,), attrs, where, op.source)


def _block_name(value: str, i: int, held: Holding) -> str:
    """The name of a value's part for the i-th block of its parameter."""
    return value if len(held) == 1 else f"{value}.block{i}"


def _blockwise(op: Op, held: Mapping[str, Holding]) -> Iterator[Op]:
    """An elementwise op of an optimizer, once a block; what is no tensor of the
    parameter's shape, a scale, goes to all."""
    for i, (block, at) in enumerate(held[op.operands[0]]):
        operands = tuple(
            _block_name(name, i, held[name]) if name in held else name
            for name in op.operands
        )
        name = f"{block.name}.new"
        if not is_update(op.kind):
            name = _block_name(op.name, i, held[op.operands[0]])
        result = replace(op.result, name=name, type=_block_type(block, op.result))
        yield replace(op, operands=operands, results=(result,), place=at)


def _stores(op: Op, held: Holding) -> Iterator[Op]:
    for block, at in held:
        yield replace(op, operands=(block.name, f"{block.name}.new"), place=at)


def _squares(op: Op, held: Mapping[str, Holding]) -> Iterator[Op]:
    """One partial sum of squares a server."""
    parts: dict[Place, list[str]] = defaultdict(list)
    for name in op.operands:
        for i, (_, at) in enumerate(held[name]):
            parts[at].append(_block_name(name, i, held[name]))
    for i, (at, names) in enumerate(parts.items()):
        name = op.name if len(parts) == 1 else f"{op.name}.{i}"
        value = replace(op.result, name=name)
        yield replace(op, operands=tuple(names), results=(value,), place=at)


def _scale(graph: Graph, op: Op, parts: Mapping[str, Sequence[Op]]) -> Op:
    """The scale of a norm takes every partial sum, at the first of their places."""
    order = {node: i for i, node in enumerate(graph.cluster.all_nodes())}
    squares = [
        part
        for name in op.operands
        for part in sorted(
            parts.get(name, (graph.producers[name],)),
            key=lambda part: order[graph.nodes(part)[0]],
        )
    ]
    if op.kind == "clip_scale":
        squares.sort(key=lambda part: order[graph.nodes(part)[0]])
    place = squares[0].place
    assert place is not None
    if any(part.place != place for part in squares):
        place = first_node(graph.cluster, place)
    return replace(op, operands=tuple(part.name for part in squares), place=place)


def _without_recipes(graph: Graph) -> Graph:
    return graph.with_ops(op for op in graph.ops if op.kind != "optimizer")
