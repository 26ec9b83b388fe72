"""Explains the place of an op or parameter, and lists its transfers between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import to_builtins

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.graph.text import print_op
from placer.errors import PlacerError, nearest
from placer.place import HETER
from placer.place.ids import format_nodes
from placer.place.layouts import Layout
from placer.place.layouts.partition import row_shards
from placer.plan.plan import (
    Choice,
    Edge,
    EdgeValue,
    Parameter,
    Plan,
    SparseTable,
    Table,
)
from placer.plan.settings.training.initializers import Init
from placer.plan.settings.training.slicing import Block
from placer.plan.table_text import describe_optimizer
from placer.report.numbers import format_count, plural
from placer.report.repeated_work import explain_repeat
from placer.report.server_tables import block_bytes, format_range, item_bytes
from placer.report.sparse_tables import describe_table

LAYOUT_TEXTS: dict[Layout, str] = {
    "R": "replicated: each node has the whole value",
    "S": "split: each node has its rows of the batch",
    "P": "partial: the value is the sum over all nodes",
    "F": "in flat ranges: each node has a range of the elements",
}
"""The meaning of each layout for a value on several nodes."""


MICROBATCH_LAYOUT_TEXTS: dict[Layout, str] = {
    "R": "the same in all microbatches",
    "S": "split over microbatches: each has its rows of the batch",
    "P": "partial over microbatches: the value is the sum over all microbatches",
}
"""The meaning of each layout for a value over the microbatches of a step."""


KEYED_LAYOUT_TEXTS: dict[Layout, str] = {
    "R": "by key: each node has the rows of the keys that it looks up",
    "S": "by key: each node has the rows of the keys in its partitions",
    "P": "by key: each node has the rows of the keys in its part of the batch",
}
"""The meaning of each layout for a value with a row for each key."""


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The parts of a build that explanations need.

    Attributes:
        graphs: The graphs of a step, an evaluation and a prediction.
        op_positions: The position of each op in the spec, such as `digits.yaml:28:16`.
    """

    plan: Plan
    graphs: Sequence[Graph]
    op_positions: dict[str, str] = field(default_factory=dict)


def explain(build: BuildInfo, name: str) -> Iterator[str]:
    """Yield lines that explain an op, a value, a parameter or a block. Raises
    PlacerError for an unknown name. The hint is the nearest name."""
    plan = build.plan
    parameter = next((p for p in plan.parameters if p.name == name), None)
    table = next((t for t in plan.sparse_tables if t.name == name), None)
    op = _find_op(build.graphs, name)
    if parameter is not None:
        yield from _parameter(build, parameter)
    elif table is not None:
        yield from _sparse_table(build, table)
    elif op is not None:
        yield from _op(build, op, name)
    else:
        raise _unknown_name(build, name)


def _find_op(graphs: Sequence[Graph], name: str) -> Op | None:
    for graph in graphs:
        if name in graph.producers:
            return graph.producers[name]
        for op in graph.ops:
            if name == op.name:
                return op
    return None


def _unknown_name(build: BuildInfo, name: str) -> PlacerError:
    names = {p.name for p in build.plan.parameters}
    names |= {table.name for table in build.plan.sparse_tables}
    for graph in build.graphs:
        names |= {*graph.values, *(op.name for op in graph.ops)}
    close = nearest(name, names)
    hint = (
        f"did you mean '{close}'?" if close else "`placer show --graph` lists the names"
    )
    if name in {*build.plan.processes, *(node.name for node in build.plan.nodes)}:
        hint = f"'{name}' is a node: see `placer show --node {name}`"
    return PlacerError(
        f"'{build.plan.name}' has no op or parameter '{name}'", hint=hint
    )


def _parameter(build: BuildInfo, parameter: Parameter) -> Iterator[str]:
    shape = ", ".join(map(str, parameter.shape))
    trained = "trained" if parameter.trainable else "not trained"
    yield f"{parameter.name}: parameter {parameter.dtype}[{shape}], {trained}"
    blocks = list(_blocks(build, parameter))
    own = {parameter.name} | {block.name for _, _, block in blocks}
    yield from _position(build, parameter.name, *own)
    yield f"  initialized as {_init(parameter.init)}"
    chosen = _choices(build.plan, own)
    whys = dict.fromkeys(c.why for c in chosen if "(parameter)" in c.what)
    nodes = ", ".join(dict.fromkeys(holder for holder, _, _ in parameter.holders))
    yield f"  stored on {nodes}: {'; '.join(whys) or 'as written in the spec'}"
    items = item_bytes(build.plan)
    for holder, table, block in blocks:
        yield (
            f"    {block.name}: elements {format_range(block.start, block.stop)}, "
            f"{format_count(block_bytes(block, items))} bytes, on {holder} in table "
            f"'{table.name}' ({table.rule or 'not trained'})"
        )
    local = [*_local_tables(build, parameter)]
    for node, table in local:
        yield f"  {node} trains its own copy, in table '{table.name}' ({table.rule})"
    tables = [*(table for _, table, _ in blocks), *(table for _, table in local)]
    for table in {table.name: table for table in tables}.values():
        yield f"  {table.name}: {describe_optimizer(build.plan, table)}"
    yield from _crossings(build, own, "the parameter is")
    if local:
        yield from _crossings(build, {f"{parameter.name}.delta"}, "its change is")
    if parameter.trainable:
        grads = {f"{name}.grad" for name in own}
        yield from _crossings(build, grads, "its gradient is")


def _sparse_table(build: BuildInfo, table: SparseTable) -> Iterator[str]:
    plan, name = build.plan, table.name
    trained = "trained" if table.trainable else "not trained"
    yield f"{name}: sparse table {table.dtype}[keys, {table.settings.dim}], {trained}"
    yield from _position(build, name)
    whys = dict.fromkeys(choice.why for choice in _choices(plan, {name}))
    nodes = format_nodes(table.holders)
    yield f"  stored on {nodes}: {'; '.join(whys) or 'as written in the spec'}"
    for line in describe_table(plan, table):
        yield f"  {line}"
    edges = (*plan.step_edges, *plan.evaluation_edges, *plan.prediction_edges)
    moved = {v.operand for edge in edges for v in edge.values if v.table == name}
    yield from _crossings(build, moved, "its rows, their keys and gradients are")


def _init(init: Init) -> str:
    written = to_builtins(init)
    return written if isinstance(init, str) else f"{init.name}: {written[init.name]}"


def _blocks(
    build: BuildInfo, parameter: Parameter
) -> Iterator[tuple[str, Table, Block]]:
    for holder, name, index in parameter.holders:
        tables = build.plan.node(holder).tables
        table = next(table for table in tables if table.name == name)
        yield holder, table, table.blocks[index]


def _local_tables(
    build: BuildInfo, parameter: Parameter
) -> Iterator[tuple[str, Table]]:
    for node in build.plan.nodes:
        for table in node.tables:
            names = {block.parameter for block in table.blocks}
            if table.local and parameter.name in names:
                yield node.name, table


def _op(build: BuildInfo, op: Op, name: str) -> Iterator[str]:
    graph = next(g for g in build.graphs if op in g.ops)
    yield print_op(op)
    yield from _position(build, op.name)
    assert op.place is not None
    chosen = list(_choices(build.plan, {op.name}))
    why = "; ".join(choice.why for choice in chosen) or _default_reason(op)
    nodes = format_nodes(graph.nodes(op))
    yield f"  runs at {op.place} ({nodes}): {why}"
    yield from explain_repeat(graph, op.name)
    if graph.is_repeated(op):
        yield f"  runs for each of the {graph.microbatches} microbatches of a step"
    for value in op.results:
        yield from _layouts(graph, op, value)
    for operand in dict.fromkeys(op.operands):
        source = graph.producers[operand]
        edge = f" (edge {source.attrs['edge']})" if "edge" in source.attrs else ""
        yield f"  uses {operand}, from {source.kind} at {source.place}{edge}"
    for value in op.results:
        for user in graph.uses.get(value.name, ()):
            yield f"  {value.name} is used by {user.name} ({user.kind}) at {user.place}"
    names = {value.name for value in op.results} or set(op.operands)
    yield from _crossings(build, names, f"{name} is")


def _layouts(graph: Graph, op: Op, value: Value) -> Iterator[str]:
    nodes = graph.nodes(op)
    if value.layout is not None and len(nodes) > 1:
        texts = KEYED_LAYOUT_TEXTS if is_keyed(graph, value.name) else LAYOUT_TEXTS
        yield f"  {value.name} is {texts[value.layout]}"
        if value.layout == "S" and nodes[0].kind == HETER:
            pairs = zip(nodes, row_shards(nodes, graph.cluster.workers), strict=True)
            for node, share in pairs:
                workers = [graph.cluster.worker_nodes[i] for i in share.part_indices]
                yield f"    {node} has the rows of {format_nodes(workers)}"
    if value.microbatch_layout is not None:
        yield f"  {value.name} is {MICROBATCH_LAYOUT_TEXTS[value.microbatch_layout]}"


def _default_reason(op: Op) -> str:
    if op.is_gradient:
        return "a gradient op runs at the place of its forward op"
    return "as written in the spec"


def _position(build: BuildInfo, *names: str) -> Iterator[str]:
    positions = [build.op_positions[n] for n in names if n in build.op_positions]
    if positions:
        yield f"  written at {positions[0]}"


def _choices(plan: Plan, names: set[str]) -> Iterator[Choice]:
    for choice in plan.choices:
        if choice.what.partition(" (")[0] in names:
            yield choice


def _crossings(build: BuildInfo, names: set[str], what: str) -> Iterator[str]:
    plan = build.plan
    names = {name for graph in build.graphs for name in _copies(graph, names)}
    lines = [
        line
        for edges, whole, part in (
            (plan.step_edges, "step", "step"),
            (plan.evaluation_edges, "evaluation", "evaluation batch"),
            (plan.prediction_edges, "prediction", "prediction batch"),
        )
        for edge in edges
        for line in _crossing(edge, names, whole if edge.once else part)
    ]
    if lines:
        yield f"  {what} sent between nodes:"
        yield from lines
    else:
        yield f"  {what} not sent between nodes"


def _copies(graph: Graph, names: set[str]) -> set[str]:
    """Return values with their copies, sums over nodes, and microbatch totals."""
    copies = set(names)
    pending = list(names)
    while pending:
        name = pending.pop()
        for user in graph.uses.get(name, ()):
            structure = user.structure
            if structure.sends:
                results = graph.receives[user.attrs["edge"]].results
            elif structure.copies or structure.reduces or user.kind == "clip_part":
                results = user.results
            else:
                continue
            copy = results[user.operands.index(name)].name
            if copy not in copies:
                copies.add(copy)
                pending.append(copy)
    return copies


def _crossing(edge: Edge, names: set[str], when: str) -> Iterator[str]:
    carried = [v for v in edge.values if names & {v.operand, v.result, v.whole}]
    if not carried:
        return
    others = len(edge.values) - len(carried)
    how = ""
    if edge.declared:
        how = edge.declared.words.format(every=edge.every, first=edge.first) + "; "
    average = " on average" if edge.every > 1 else ""
    size = f"{format_count(edge.nbytes)} bytes per {when}{average}"
    if edge.is_by_key:
        size = f"at most {size}"
    if not edge.nbytes:
        size = f"between threads of one process, in each {when}"
    more = f", with {plural(others, 'other value')}" if others else ""
    yield (
        f"    edge {edge.id}: {format_nodes(edge.sources)} -> "
        f"{format_nodes(edge.targets)}, "
        f"{', '.join(_describe_move(each, edge) for each in carried)}, {how}{size}{more}"
    )


def _describe_move(moved: EdgeValue, edge: Edge) -> str:
    have, need = moved.layouts
    part = ""
    if moved.start is not None and moved.stop is not None:
        part = f" (elements {format_range(moved.start, moved.stop)})"
    if edge.exchange is not None:
        return f"{moved.operand}{part}"
    order = "ring" if edge.ring else "node"
    summed = f", summed in {order} order" if have == "P" else ""
    return f"{moved.operand}{part} {have} -> {need}{summed}"
