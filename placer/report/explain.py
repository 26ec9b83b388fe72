"""Explains the place of an op or parameter, and lists its transfers between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import to_builtins

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.keyed import is_keyed
from placer.compiler.graph.text import print_op
from placer.compiler.passes.placement.place import ON_ONE_SERVER
from placer.errors import PlacerError, nearest
from placer.place import HETER
from placer.place.ids import format_nodes
from placer.place.layouts import Layout
from placer.place.layouts.partition import row_shards
from placer.place.types import TensorType
from placer.plan.plan import Choice, Parameter, Plan, SparseTable, Table
from placer.plan.settings.training.initializers import file_of
from placer.plan.settings.training.slicing import Block
from placer.plan.table_text import describe_optimizer
from placer.report.explained_edges import list_messages
from placer.report.layers import is_of_model, layer_name, main_op
from placer.report.numbers import format_count, plural
from placer.report.repeated_work import explain_repeat
from placer.report.server_tables import block_bytes, format_range, item_bytes
from placer.report.slicing_reasons import explain_slicing
from placer.report.sparse_tables import describe_table
from placer.system.listed import list_names

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


_LONG = 400
"""The largest length of the line of an op that is shown as in the graph."""
_MOST_OPERANDS = 6
"""The largest number of operands of one source, or of blocks, that a line names."""


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
    """Yield lines that explain a name of a build.

    This is a parameter, a block, a table, a layer, an op or a value. Raises PlacerError for
    an unknown name. The hint is the nearest name.
    """
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
    elif ops := _ops_of_layer(build.graphs, name):
        yield from _layer(build, name, ops)
    elif tables := _tables_named(plan, name):
        yield from _dense_table(plan, name, tables)
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


def _ops_of_layer(graphs: Sequence[Graph], name: str) -> list[Op]:
    """Return the ops of a layer, such as `logits.training` and `logits.evaluation`."""
    ops: dict[str, Op] = {}
    for graph in graphs:
        for op in graph.ops:
            if is_of_model(op) and layer_name(op) == name:
                ops.setdefault(op.name, op)
    return [*ops.values()]


def _tables_named(plan: Plan, name: str) -> list[tuple[str, Table]]:
    """Return the nodes with a dense table of this name, and their tables."""
    return [
        (node.name, table)
        for node in plan.nodes
        for table in node.tables
        if table.name == name
    ]


def list_names_of(build: BuildInfo) -> Iterator[str]:
    """Yield the names that `explain` accepts, in a line for each kind of names."""
    plan, groups = build.plan, dict[str, dict[str, None]]()
    for graph in build.graphs:
        for op in filter(is_of_model, graph.ops):
            kind = "inputs" if op.kind == "read" else "layers"
            groups.setdefault(kind, {})[layer_name(op)] = None
    groups["parameters"] = dict.fromkeys(p.name for p in plan.parameters)
    groups["sparse tables"] = dict.fromkeys(table.name for table in plan.sparse_tables)
    groups["tables"] = dict.fromkeys(
        table.name for node in plan.nodes for table in node.tables
    )
    for kind, names in groups.items():
        if names:
            yield f"  {kind}: {', '.join(names)}"


def _unknown_name(build: BuildInfo, name: str) -> PlacerError:
    names = {p.name for p in build.plan.parameters}
    names |= {table.name for table in build.plan.sparse_tables}
    names |= {table.name for node in build.plan.nodes for table in node.tables}
    for graph in build.graphs:
        names |= {*graph.values, *(op.name for op in graph.ops)}
        names |= {layer_name(op) for op in graph.ops if is_of_model(op)}
    close = nearest(name, names)
    hint = (
        f"did you mean '{close}'?"
        if close
        else "`placer explain` without a name lists the names"
    )
    if name in {*build.plan.processes, *(node.name for node in build.plan.nodes)}:
        hint = f"'{name}' is a node: see `placer show --node {name}`"
    if name.endswith("_seed_generator_state"):
        hint = (
            "placer replaces the state of Keras' seed generators by the key of each step,"
            " and stores it nowhere"
        )
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
    yield f"  initialized {_init(parameter)}"
    chosen = _choices(build.plan, own)
    whys = dict.fromkeys(c.why for c in chosen if "(parameter)" in c.what)
    local = [*_local_tables(build, parameter)]
    if local:
        whys["workers train copies, and the servers add their changes"] = None
    copies = _copies(build.plan, parameter)
    yield f"  stored on {_stored(copies)}: {'; '.join(whys) or 'as written in the spec'}"
    items = item_bytes(build.plan)
    for block, table, nodes in copies:
        yield (
            f"    {block.name}: elements {format_range(block.start, block.stop)}, "
            f"{format_count(block_bytes(block, items))} bytes, on {format_nodes(nodes)} "
            f"in table '{table.name}' ({table.rule or 'not trained'})"
        )
    if ON_ONE_SERVER not in whys:
        names = [block.name for _, _, block in blocks]
        for line in explain_slicing(build.graphs[0], parameter, names):
            yield f"  {line}"
    if local:
        workers = format_nodes(node for node, _ in local)
        table = local[0][1]
        yield f"  {workers} train their own copies, in table '{table.name}' ({table.rule})"
    tables = [*(table for _, table, _ in blocks), *(table for _, table in local)]
    for table in {table.name: table for table in tables}.values():
        yield f"  {table.name}: {describe_optimizer(build.plan, table)}"
    yield from _messages(build, own, "the parameter is")
    if local:
        yield from _messages(build, {f"{parameter.name}.delta"}, "its change is")
    if parameter.trainable:
        grads = {f"{name}.grad" for name in own}
        yield from _messages(build, grads, "its gradient is")


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
    if others := [other for other in table.over if other != name]:
        yield f"  its keys are those of {', '.join(others)}: they are collected and merged once"
    edges = (*plan.step_edges, *plan.evaluation_edges, *plan.prediction_edges)
    moved = {v.operand for edge in edges for v in edge.values if name in v.tables}
    yield from _messages(build, moved, "its rows, their keys and gradients are")


def _init(parameter: Parameter) -> str:
    init = parameter.init
    if (file := file_of(init)) is not None:
        layer = file.removesuffix(".safetensors")
        of_layer = f" of {layer} at compile time," if _is_of(parameter, layer) else ""
        return f"with the values{of_layer} in {file} of the build"
    written = to_builtins(init)
    text = written if isinstance(init, str) else f"{init.name}: {written[init.name]}"
    return f"as {text}"


def _is_of(parameter: Parameter, layer: str) -> bool:
    """Whether a parameter is of a layer, whose traced values are in a file of its name."""
    return parameter.name.startswith(f"{layer}.")


def _blocks(
    build: BuildInfo, parameter: Parameter
) -> Iterator[tuple[str, Table, Block]]:
    for holder, name, index in parameter.holders:
        tables = build.plan.node(holder).tables
        table = next(table for table in tables if table.name == name)
        yield holder, table, table.blocks[index]


_Copies = list[tuple[Block, Table, list[str]]]
"""The blocks of a parameter, each with its table and the nodes that have it."""


def _copies(plan: Plan, parameter: Parameter) -> _Copies:
    """Return the blocks of a parameter with all nodes that store them."""
    found: dict[tuple[int, int], tuple[Block, Table, list[str]]] = {}
    for node in plan.nodes:
        for table in node.tables:
            for block in table.blocks:
                if block.parameter == parameter.name and not table.local:
                    key = block.start, block.stop
                    found.setdefault(key, (block, table, []))[2].append(node.name)
    return [found[key] for key in sorted(found)]


def _stored(copies: _Copies) -> str:
    """Return the nodes that store a parameter, as text."""
    nodes = dict.fromkeys(node for _, _, nodes in copies for node in nodes)
    if len(copies) == 1 and len(nodes) > 1:
        return f"{format_nodes(nodes)}, a copy on each"
    return format_nodes(nodes)


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
    yield _short_line(op)
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
    sources: dict[str, list[str]] = {}
    for operand in dict.fromkeys(op.operands):
        source = graph.producers[operand]
        edge = f" (edge {source.attrs['edge']})" if "edge" in source.attrs else ""
        text = f"from {source.kind} at {source.place}{edge}"
        sources.setdefault(text, []).append(operand)
    for text, names in sources.items():
        yield f"  uses {list_names(names, _MOST_OPERANDS)}, {text}"
    for value in op.results:
        for user in graph.uses.get(value.name, ()):
            yield f"  {value.name} is used by {user.name} ({user.kind}) at {user.place}"
    sent = {value.name for value in op.results} or set(op.operands)
    yield from _messages(build, sent, f"{name} is")


def _short_line(op: Op) -> str:
    """Return the line of an op in the graph, without its further operands and attributes
    if it is long."""
    line = print_op(op)
    if len(line) <= _LONG:
        return line
    first = op.results[0] if op.results else None
    result = ""
    if first is not None:
        is_tensor = isinstance(first.type, TensorType)
        kind = str(first.type) if is_tensor else "arrays"
        more = len(op.results) - 1
        also = f" and {plural(more, 'more result')}" if more else ""
        result = f"%{first.name}: {kind}{also} = "
    operands = [f"%{name}" for name in op.operands[:_MOST_OPERANDS]]
    if more := len(op.operands) - len(operands):
        operands.append(plural(more, "more input"))
    fn = f" {op.attrs['fn']}" if "fn" in op.attrs else ""
    return f"{result}{op.kind}({', '.join(operands)}){fn} @{op.place}"


def _layer(build: BuildInfo, name: str, ops: Sequence[Op]) -> Iterator[str]:
    """Yield lines about a layer of several ops, and about its main op in each graph."""
    yield f"{name}: {plural(len(ops), 'op')}: {', '.join(op.name for op in ops)}"
    mains = (
        main_op(name, own)
        for graph in build.graphs
        if (
            own := [
                op for op in graph.ops if is_of_model(op) and layer_name(op) == name
            ]
        )
    )
    for main in {op.name: op for op in mains}.values():
        yield from _op(build, main, main.name)


def _dense_table(
    plan: Plan, name: str, tables: Sequence[tuple[str, Table]]
) -> Iterator[str]:
    """Yield the optimizer of a dense table, and the blocks on each node."""
    yield f"{name}: dense table; {describe_optimizer(plan, tables[0][1])}"
    items = item_bytes(plan)
    for node, table in tables:
        nbytes = sum(block_bytes(block, items) for block in table.blocks)
        blocks = list_names([block.name for block in table.blocks], _MOST_OPERANDS)
        size = f"{plural(len(table.blocks), 'block')} of {format_count(nbytes)} bytes"
        yield f"  {node}: {size}: {blocks}" if table.blocks else f"  {node}: {size}"


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


def _messages(build: BuildInfo, names: set[str], what: str) -> Iterator[str]:
    yield from list_messages(build.plan, build.graphs, names, what)
