"""Why an op or a parameter is where it is, and what of it crosses between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placer.build.plan import Choice, Edge, Moved, Parameter, Plan, Table, TableBlock
from placer.errors import PlacerError, nearest
from placer.graph.graph import TOGETHER, Graph, Op, Value
from placer.graph.kinds import COPIES
from placer.graph.text import print_op
from placer.layouts import Layout
from placer.layouts.conversions import shares
from placer.place import HETER
from placer.report.numbers import count, plural
from placer.report.repeated_work import explained
from placer.report.server_tables import block_bytes, describe, elements, item_bytes

LAYOUTS: dict[Layout, str] = {
    "R": "replicated: each has the whole value",
    "S": "split: each has its rows of the batch",
    "P": "partial: the value is the sum over all",
}


OVER: dict[Layout, str] = {
    "R": "the same in all microbatches",
    "S": "split over microbatches: each has its rows of the batch",
    "P": "partial over microbatches: the value is the sum over all",
}


@dataclass(frozen=True, slots=True)
class Build:
    """What an explanation draws on. `graphs` are of a step, then of an evaluation;
    `written` is where in the spec the ops stand (`digits.yaml:28:16`), by name."""

    plan: Plan
    graphs: Sequence[Graph]
    written: dict[str, str] = field(default_factory=dict)


def explanation(build: Build, name: str) -> Iterator[str]:
    """All there is to say about a name, line by line.

    A name is a value's, an op's, a parameter's or a block's; PlacerError with the
    nearest one for any other.
    """
    parameter = next((p for p in build.plan.parameters if p.name == name), None)
    op = _find(build.graphs, name)
    if parameter is None and op is None:
        raise _unknown(build, name)
    if parameter is not None:
        yield from _parameter(build, parameter)
    elif op is not None:
        yield from _op(build, op, name)


def all_choices(plan: Plan) -> Iterator[str]:
    """All that was chosen or put in, a line each."""
    for choice in plan.choices:
        yield f"{choice.what}: {choice.why}"


def _find(graphs: Sequence[Graph], name: str) -> Op | None:
    """The op of that name, or the one that has a result of that name."""
    for graph in graphs:
        if name in graph.producers:
            return graph.producers[name]
        for op in graph.ops:
            if name == op.name:
                return op
    return None


def _unknown(build: Build, name: str) -> PlacerError:
    names = {p.name for p in build.plan.parameters}
    names |= {value for graph in build.graphs for value in graph.values}
    close = nearest(name, names)
    hint = f"did you mean '{close}'?" if close else "`placer show` lists the names"
    if name in {node.name for node in build.plan.nodes}:
        hint = f"it is a node: see `placer show --node {name}`"
    return PlacerError(
        f"'{build.plan.name}' has no op and no parameter '{name}'", hint=hint
    )


def _parameter(build: Build, parameter: Parameter) -> Iterator[str]:
    shape = ", ".join(map(str, parameter.shape))
    trained = "trained" if parameter.trainable else "not trained"
    yield f"{parameter.name}: parameter {parameter.dtype}[{shape}], {trained}"
    own = {parameter.name} | {block.name for _, _, block in _blocks(build, parameter)}
    yield from _written(build, parameter.name, *own)
    yield f"  begins as {_init(parameter.init)}"
    chosen = _choices(build.plan, own)
    whys = dict.fromkeys(c.why for c in chosen if "(parameter)" in c.what)
    stands = ", ".join(dict.fromkeys(holder for holder, _, _ in parameter.holders))
    yield f"  stands on {stands}: {'; '.join(whys) or 'as written'}"
    items = item_bytes(build.plan)
    for holder, table, block in _blocks(build, parameter):
        yield (
            f"    {block.name}: elements {elements(block.start, block.stop)}, "
            f"{count(block_bytes(block, items))} bytes, on {holder} in table "
            f"'{table.name}' ({table.rule or 'not trained'})"
        )
    for table in {
        table.name: table for _, table, _ in _blocks(build, parameter)
    }.values():
        yield f"  {table.name}: {describe(table)}"
    yield from _crossings(build, own, "the parameter")
    if parameter.trainable:
        grads = {f"{name}.grad" for name in own}
        yield from _crossings(build, grads, "its gradient")


def _init(init: Any) -> str:
    """An initialiser as a spec writes it."""
    if isinstance(init, Mapping):
        return ", ".join(f"{key}: {value}" for key, value in init.items())
    return str(init)


def _blocks(
    build: Build, parameter: Parameter
) -> Iterator[tuple[str, Table, TableBlock]]:
    for holder, name, index in parameter.holders:
        tables = build.plan.node(holder).tables
        table = next(table for table in tables if table.name == name)
        yield holder, table, table.blocks[index]


def _op(build: Build, op: Op, name: str) -> Iterator[str]:
    graph = next(g for g in build.graphs if op in g.ops)
    yield print_op(op)
    yield from _written(build, op.name)
    assert op.place is not None
    chosen = list(_choices(build.plan, {op.name}))
    why = "; ".join(choice.why for choice in chosen) or _default_reason(op)
    nodes = ", ".join(graph.nodes(op))
    yield f"  stands at {op.place} ({nodes}): {why}"
    again = explained(graph, op.name)
    if again is not None:
        yield f"  {again}"
    if graph.is_repeated(op):
        yield f"  runs for each of the {graph.microbatches} microbatches of a step"
    for value in op.results:
        yield from _layouts(graph, op, value)
    for operand in dict.fromkeys(op.operands):
        source = graph.producers[operand]
        edge = f" (edge {source.attrs['edge']})" if "edge" in source.attrs else ""
        yield f"  takes {operand}, of {source.kind} at {source.place}{edge}"
    for value in op.results:
        for user in graph.uses.get(value.name, ()):
            yield f"  {value.name} goes to {user.name} ({user.kind}) at {user.place}"
    names = {value.name for value in op.results} or set(op.operands)
    yield from _crossings(build, names, name)


def _layouts(graph: Graph, op: Op, value: Value) -> Iterator[str]:
    """How a value lies on its nodes, and over microbatches."""
    nodes = graph.nodes(op)
    if value.layout is not None and len(nodes) > 1:
        yield f"  {value.name} is {LAYOUTS[value.layout]}"
        if value.layout == "S" and nodes[0].startswith(f"{HETER}:"):
            found = zip(nodes, shares(nodes, graph.cluster.workers), strict=True)
            for node, share in found:
                workers = ", ".join(f"worker:{i}" for i in share.own)
                yield f"    {node} has those of {workers}"
    if value.over is not None:
        yield f"  {value.name} is {OVER[value.over]}"


def _default_reason(op: Op) -> str:
    if op.is_gradient:
        return "a gradient op stands where its forward op does"
    return "as written"


def _written(build: Build, *names: str) -> Iterator[str]:
    found = next((build.written[n] for n in names if n in build.written), None)
    if found is not None:
        yield f"  written at {found}"


def _choices(plan: Plan, names: set[str]) -> Iterator[Choice]:
    for choice in plan.choices:
        if choice.what.partition(" (")[0] in names:
            yield choice


def _crossings(build: Build, names: set[str], what: str) -> Iterator[str]:
    plan = build.plan
    names = {found for graph in build.graphs for found in _copies(graph, names)}
    lines = [
        line
        for edges, when in (
            (plan.step_edges, "step"),
            (plan.evaluation_edges, "evaluation batch"),
        )
        for edge in edges
        for line in _crossing(edge, names, "evaluation" if edge.once else when)
    ]
    if lines:
        yield f"  {what} crosses between nodes:"
        yield from lines
    else:
        yield f"  {what} does not cross between nodes"


def _copies(graph: Graph, names: set[str]) -> set[str]:
    """The values, and what is the same in another memory or of all microbatches."""
    found = set(names)
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        for user in graph.uses.get(name, ()):
            if user.kind in COPIES or user.kind in TOGETHER.values():
                made = user.results[user.operands.index(name)].name
                found.add(made)
                ahead.append(made)
    return found


def _crossing(edge: Edge, names: set[str], when: str) -> Iterator[str]:
    carried = [v for v in edge.values if names & {v.operand, v.result, v.whole}]
    if not carried:
        return
    others = len(edge.values) - len(carried)
    more = f", with {plural(others, 'other value')}" if others else ""
    yield (
        f"    edge {edge.id}: {', '.join(edge.sources)} -> {', '.join(edge.targets)}, "
        f"{', '.join(map(_lies, carried))}, "
        f"{count(edge.nbytes)} bytes a{'n' if when[0] == 'e' else ''} {when}{more}"
    )


def _lies(moved: Moved) -> str:
    have, need = moved.layouts
    part = ""
    if moved.start is not None and moved.stop is not None:
        part = f" (elements {elements(moved.start, moved.stop)})"
    summed = ", summed in the order of the nodes" if have == "P" else ""
    return f"{moved.operand}{part} {have} -> {need}{summed}"
