"""lay_out: say how each value lies on its places, and convert where an op asks.

Needs a placed, sliced graph. Afterwards every value has a layout (R, S or P, design 4)
and every op finds each operand where it runs, in the layout it needs: conversions
such as `all_reduce` stand before their first use. A value is converted once for each
layout and place, however many ops use it (R6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm, prod

from placer.analysis.layout_rules import (
    Layouts,
    Ways,
    by_rule,
    of_accumulation,
    of_gradient,
    replicated,
)
from placer.errors import GraphError
from placer.graph.fresh_names import fresh
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import (
    CONVERSIONS,
    OVER,
    is_computed,
    is_once,
    is_structural,
)
from placer.layouts import Layout
from placer.layouts.conversions import shares
from placer.passes.place import joined
from placer.place import Place
from placer.types import TensorType


def lay_out(graph: Graph) -> Graph:
    layouts: dict[str, Layout] = {}
    needs: list[Layouts] = []
    by_op: dict[str, Layouts] = {}
    known: dict[tuple[object, ...], Ways] = {}
    for op in graph.ops:
        wanted, given = _layouts_of(graph, op, layouts, by_op, known)
        needs.append(wanted)
        if op.results:
            by_op[op.results[0].name] = wanted
        for value, layout in zip(op.results, given, strict=True):
            layouts[value.name] = layout
    laid_out = _converted(graph, layouts, needs)
    check_rows(laid_out)
    return laid_out


def _layouts_of(
    graph: Graph,
    op: Op,
    layouts: Mapping[str, Layout],
    by_op: Mapping[str, Layouts],
    known: dict[tuple[object, ...], Ways],
) -> Ways:
    """What layout the op needs of each operand, and what its results have."""
    single = len(graph.nodes(op)) == 1
    if op.kind == "read":
        split = graph.tensor(op.name).has_rows and not single
        return (), ("S" if split else "R",)
    if op.kind == "record":
        return tuple(layouts[name] for name in op.operands), ()
    if op.kind in OVER and not single:
        # Rows of one node are not side by side in the batch once they are joined.
        as_is = op.kind not in ("join_microbatches", "split_microbatches")
        layout = layouts[op.operands[0]] if as_is else "R"
        return (layout,), (layout,)
    if op.kind == "cut":
        return (layouts[op.operands[0]],), (layouts[op.operands[0]],)
    if single or is_structural(op.kind):
        return replicated(op)
    if op.is_gradient:
        forward = graph.producers[op.operands[0]]
        types = [graph.tensor(name) for name in forward.operands]
        needed = by_op[forward.results[0].name]
        return of_gradient(op, forward, types, needed, layouts)
    if op.kind == "accumulate":
        return of_accumulation(op, layouts)
    types = [graph.tensor(name) for name in op.operands]
    have = [
        _arriving(graph, op, name, kind, layouts)
        for name, kind in zip(op.operands, types, strict=True)
    ]
    written = repr(op.attrs) if op.attrs else ""
    key = op.kind, written, len(op.results), *have, *types
    if key not in known:
        known[key] = by_rule(op, types, have)
    return known[key]


def _arriving(
    graph: Graph, op: Op, name: str, kind: TensorType, layouts: Mapping[str, Layout]
) -> Layout:
    """The layout in which an operand comes. Rows of a value that stands on one other
    node are dealt out, so that the work is shared."""
    producer = graph.producers[name]
    if producer.place is op.place:
        return layouts[name]
    there = graph.nodes(producer)
    alone = len(there) == 1 and there != graph.nodes(op)
    return "S" if alone and kind.has_rows else layouts[name]


def check_rows(graph: Graph) -> None:
    """Raise GraphError unless every split value can be split evenly: over nodes, and
    over the devices that compute together on each."""
    devices: dict[int, int] = {}  # of a place, by identity
    for op in graph.ops:
        if op.kind == "read" and op.name not in graph.uses:
            continue  # whoever takes it has all rows, and reads them
        parts = devices.get(id(op.place))
        if parts is None:
            assert op.place is not None
            parts = len(graph.cluster.device_ids(op.place))
            devices[id(op.place)] = parts
        for value in op.results:
            kind = value.type
            rows = isinstance(kind, TensorType) and kind.has_rows
            over = parts if is_computed(op) and rows else 1
            ways: list[tuple[int, str]] = []
            if value.layout == "S":
                found = shares(graph.nodes(op), graph.cluster.workers)
                # Of a node that has the rows of several workers, all go to its devices.
                over = lcm(
                    *(over // gcd(over, len(each.own)) for each in found if each.own)
                )
                of_workers = found[0].parts > len(found)
                ways.append((found[0].parts, "workers" if of_workers else "nodes"))
            ways.append((over, "devices"))
            if rows and value.over == "S":
                ways.append((graph.microbatches, "microbatches"))
            if graph.batch % prod(count for count, _ in ways):
                raise _uneven(graph, op, value, [way for way in ways if way[0] > 1])


def _uneven(
    graph: Graph, op: Op, value: Value, ways: Sequence[tuple[int, str]]
) -> GraphError:
    parts = prod(count for count, _ in ways)
    what = " x ".join(f"{count} {noun}" for count, noun in ways)
    below = graph.batch - graph.batch % parts
    near = f"sizes are {below} or {below + parts}" if below else f"size is {parts}"
    source, name = op.source, value.name
    if source is None:  # where a row stands is read for an op that somebody wrote
        user = graph.uses[name][0]
        source, name = user.source, user.name
    rows = "1 row" if graph.batch == 1 else f"{graph.batch} rows"
    return GraphError(
        f"a batch of {rows} cannot be split evenly over the {what} of"
        f" {op.place}, as '{name}' needs",
        span=source,
        hint=f"the nearest batch {near}",
    )


@dataclass(frozen=True, slots=True)
class _Need:
    """A value in another layout, or elsewhere: what one conversion makes."""

    layout: Layout
    place: Place
    result: str


def _converted(
    graph: Graph, layouts: Mapping[str, Layout], needs: Sequence[Layouts]
) -> Graph:
    wanted: dict[str, list[tuple[Layout, Place]]] = {}
    unmet: dict[int, list[int]] = {}  # operands of an op that need a conversion
    for at, (op, need) in enumerate(zip(graph.ops, needs, strict=True)):
        for i, (name, layout) in enumerate(zip(op.operands, need, strict=True)):
            if not _satisfied(graph, name, layouts[name], layout, op):
                assert op.place is not None
                wanted.setdefault(name, []).append((layout, op.place))
                unmet.setdefault(at, []).append(i)
    taken = set(graph.values)
    plans = {
        name: _plan(graph, name, layouts[name], found, taken)
        for name, found in wanted.items()
    }
    out: list[Op] = []
    made: set[str] = set()
    for at, (op, need) in enumerate(zip(graph.ops, needs, strict=True)):
        operands = op.operands
        if at in unmet:
            names = list(operands)
            for i in unmet[at]:
                name = names[i]
                made_now, names[i] = _conversions(
                    graph, name, layouts[name], need[i], op, plans[name], made
                )
                out.extend(made_now)
            operands = tuple(names)
        results = tuple(
            [Value(v.name, v.type, layouts[v.name], v.over) for v in op.results]
        )
        out.append(op.of(operands, results))
    return graph.with_ops(out)


def _satisfied(graph: Graph, name: str, have: Layout, need: Layout, op: Op) -> bool:
    if have != need:
        return False
    producer = graph.producers[name]
    if producer.place is op.place:
        return True
    here, there = graph.nodes(op), graph.nodes(producer)
    if here is there:
        return True
    if have == "R":
        return set(here) <= set(there)
    if have == "P" and op.kind == "accumulate" and set(there) <= set(here):
        return True  # a node without a part adds nothing
    return here == there


def _plan(
    graph: Graph,
    name: str,
    have: Layout,
    wanted: Sequence[tuple[Layout, Place]],
    taken: set[str],
) -> list[_Need]:
    """The conversions of one value: one R for all nodes of a kind, one S or P for each
    set of nodes. Each is made on the devices of its first user."""
    found: list[_Need] = []
    for layout in ("R", "S", "P"):
        groups: dict[object, list[Place]] = {}
        for want, place in wanted:
            if want == layout:
                kind = place.node if want == "R" else _nodes(graph, place)
                groups.setdefault(kind, []).append(place)
        for places in groups.values():
            whole = joined(graph.cluster, places)
            assert whole is not None
            result = fresh(f"{name}.{CONVERSIONS[have, layout]}", taken)
            found.append(_Need(layout, whole, result))
    return found


def _conversions(
    graph: Graph,
    name: str,
    have: Layout,
    need: Layout,
    op: Op,
    plan: Sequence[_Need],
    made: set[str],
) -> tuple[list[Op], str]:
    """The conversion ops that are still to be made for this operand, and its name."""
    here = set(graph.nodes(op))
    chosen = next(
        n
        for n in plan
        if n.layout == need
        and (
            here <= set(_nodes(graph, n.place))
            if need == "R"
            else _nodes(graph, n.place) == graph.nodes(op)
        )
    )
    whole = next(
        (
            n
            for n in plan
            if n is not chosen
            and n.layout == "R"
            and need == "S"
            and here <= set(_nodes(graph, n.place))
        ),
        None,
    )
    steps: list[Op] = []
    if whole is not None:  # rows are cut from what has come whole already
        steps += _conversion(graph, name, have, whole, made)
        steps += _conversion(graph, whole.result, "R", chosen, made, of=name)
    else:
        steps += _conversion(graph, name, have, chosen, made)
    return steps, chosen.result


def _conversion(
    graph: Graph,
    name: str,
    have: Layout,
    need: _Need,
    made: set[str],
    of: str | None = None,
) -> Iterator[Op]:
    if need.result in made:
        return
    made.add(need.result)
    origin = graph.producers[of or name]
    had = graph.values[of or name]
    value = Value(need.result, had.type, need.layout, had.over)
    if origin.kind == "read" and of is None:  # not sent: the whole batch is read
        place = graph.cluster.in_memory(need.place)
        yield replace(origin, results=(value,), place=place)
        return
    kind_of, attrs = CONVERSIONS[have, need.layout], {}
    if is_once(origin):
        attrs["once"] = True
    yield Op(kind_of, (name,), (value,), attrs, need.place, origin.source)


def _nodes(graph: Graph, place: Place) -> tuple[str, ...]:
    return graph.cluster.nodes(place)
