"""The jitted function of a segment of one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from placer import ops
from placer.analysis.units import LoweredGraph, Unit, purpose_of
from placer.emit.code import INDENT, format_call, format_def, format_return, literal
from placer.emit.names import Names
from placer.graph.graph import Graph, Op
from placer.graph.kinds import (
    COPIES,
    FLAT_VIEWS,
    MICROBATCH_CONVERSIONS,
    declared_attrs,
    is_computed,
    is_conversion,
)
from placer.layouts.conversions import pieces_for
from placer.layouts.partition import RowShard, row_shard
from placer.ops.attributes import complete
from placer.ops.declaration import takes_no_count
from placer.types import ResidualType, TensorType


@dataclass(frozen=True, slots=True)
class Statement:
    """The lines emitted for one op.

    `uses_count` and `uses_size` say whether they contain the number of rows of the
    batch and of the microbatch.
    """

    lines: Sequence[str] = ()
    uses_count: bool = False
    uses_size: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """An emitted function: its lines, and the names of its arguments and results.

    `static` are its keyword arguments for numbers of rows: `count`, `rows` or both.
    """

    name: str
    lines: tuple[str, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    static: tuple[str, ...] = ()


def emit_function(
    graph: Graph, node: str, unit: Unit, names: Names, lowered: LoweredGraph
) -> Function | None:
    """Emit a unit's ops as one jitted function, named by its purpose.

    Returns None for a unit all of whose outputs are inputs, unchanged. If batches may
    be short, the function gets the rows of the batch and of the microbatch as the
    static arguments `count` and `rows`.

    In a training step, a function keeps inputs that it does not use (`keep_unused`) if
    other segments compute them. It then waits for those segments, which the proof of
    updates in place relies on (`placer.analysis.in_place`).
    """
    full = lowered.rows
    count = size = "count" if full is None else str(full)
    if graph.is_repeated(unit.ops[0]):
        size = "rows" if full is None else str(full // graph.microbatches)
    rows = _Rows(count, size)
    statements = [_statement(graph, node, op, names, rows) for op in unit.ops]
    body = [line for statement in statements for line in statement.lines]
    # A value that a conversion leaves unchanged has the name of its operand.
    inputs = dict.fromkeys(map(names.name_of, unit.inputs))
    arguments = tuple(inputs)
    outputs = dict.fromkeys(map(names.name_of, unit.outputs))
    results = tuple(output for output in outputs if output not in inputs)
    if not results:
        return None
    name = names.new_name(purpose_of(unit, lowered.evaluating))
    needed = {count for statement in statements if statement.uses_count}
    needed |= {size for statement in statements if statement.uses_size}
    static = tuple(name for name in ("count", "rows") if name in needed)
    parameters = [*arguments]
    options = []
    if static:
        parameters += ["*", *static]
        named = literal(static[0]) if len(static) == 1 else literal(static)
        options.append(f"static_argnames={named}")
    if not lowered.evaluating and _is_awaited(graph, unit.inputs):
        options.append("keep_unused=True")
    head = (
        f"@functools.partial(jax.jit, {', '.join(options)})" if options else "@jax.jit"
    )
    return_lines = format_return(results, 1)
    if len(results) == 1 and body[-1].startswith(f"{INDENT}{results[0]} = "):
        body[-1] = body[-1].replace(f"{results[0]} = ", "return ", 1)
        return_lines = []
    lines = [head, *format_def(name, parameters), *body, *return_lines]
    return Function(name, tuple(lines), arguments, results, static)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Numbers of rows, as source text.

    `count` is that of the global batch, `size` that of a microbatch, or of the batch
    for a function that runs once a step.
    """

    count: str
    size: str


def _statement(graph: Graph, node: str, op: Op, names: Names, rows: _Rows) -> Statement:
    """Emit one op as a call, or as an alias of its operand."""
    operands = [names.name_of(n) for n in op.operands if _is_on(graph, node, op, n)]
    if op.is_gradient:
        return Statement(_gradient(graph, op, names, operands))
    if op.kind == "accumulate" and len(operands) == 1:
        names.alias(op.name, operands[0])
        return Statement()
    if op.kind == "accumulate" and not operands:  # the node has no part of the sum
        return _zeros(graph.tensor_type(op.name), names.name_of(op.name), rows.size)
    if is_conversion(op.kind):
        return _conversion(graph, node, op, names, operands, rows.size)
    arguments = [*operands, *_keywords(op, names)]
    if uses_count := _uses_count(graph, op):
        arguments.append(f"count={rows.count}")
    targets = [names.name_of(value.name) for value in op.results]
    saves = isinstance(op.results[-1].type, ResidualType)
    if saves and len(targets) > 2:
        *outputs, residual = targets
        targets = [f"({', '.join(outputs)})", residual]
    verb = f"ops.{op.kind}.forward" if saves else f"ops.{op.kind}"
    return Statement(format_call(targets, verb, arguments, 1), uses_count)


def _is_awaited(graph: Graph, names: Iterable[str]) -> bool:
    """Whether a segment, on any node, computes one of these values."""
    producers = {id(op): op for op in map(graph.producers.__getitem__, names)}
    return any(
        is_computed(op)
        or (
            op.kind in FLAT_VIEWS | COPIES | MICROBATCH_CONVERSIONS
            and _is_awaited(graph, op.operands)
        )
        or op.kind == "send_and_recv"  # the reply is computed
        or (
            op.kind == "listen_and_serv"
            and _is_awaited(graph, graph.sends[op.attrs["edge"]].operands)
        )
        for op in producers.values()
    )


def _uses_count(graph: Graph, op: Op) -> bool:
    """Whether the op's function has the number of rows as an argument."""
    declaration = ops.find(op.kind)
    if declaration.takes_count is takes_no_count:
        return False
    types = [graph.tensor_type(name) for name in op.operands]
    return declaration.takes_count(
        types, complete(declaration, declared_attrs(op.attrs))
    )


def _is_on(graph: Graph, node: str, op: Op, name: str) -> bool:
    """Whether the node has the operand; only sums and conversions may lack one."""
    if op.kind != "accumulate" and not is_conversion(op.kind):
        return True
    return node in _nodes_of(graph, name)


def _nodes_of(graph: Graph, name: str) -> tuple[str, ...]:
    return graph.nodes(graph.producers[name])


def _keywords(op: Op, names: Names) -> list[str]:
    known = {attr.name for attr in ops.find(op.kind).attrs if attr.compiler_only}
    return [
        f"{key}={_format_attribute(op, key, value, names)}"
        for key, value in declared_attrs(op.attrs).items()
        if key not in known
    ]


def _format_attribute(op: Op, key: str, value: object, names: Names) -> str:
    """An attribute as source text; the function of a `call` as `module.name`."""
    if op.kind == "call" and key == "fn":
        module, _, name = str(value).partition(":")
        return f"{names.modules[module]}.{name}"
    if op.kind == "call" and key == "args":
        return repr(value)  # JSON text: single quotes outside, double quotes inside
    return literal(value)


def _gradient(graph: Graph, op: Op, names: Names, operands: Sequence[str]) -> list[str]:
    forward = graph.producers[op.operands[0]]
    wrt = dict(zip(op.attrs["wrt"], op.results, strict=True))
    targets = [
        names.name_of(wrt[i].name) if i in wrt else "_"
        for i in range(len(forward.operands))
    ]
    verb = f"ops.{op.forward_kind}.backward"
    if "cotangents" in op.attrs:  # None for the other results
        indices = op.attrs["cotangents"]
        saved, known = operands[: -len(indices)], operands[-len(indices) :]
        cotangents = ["None"] * _count_tensors(forward)
        for index, name in zip(indices, known, strict=True):
            cotangents[index] = name
        operands = [*saved, *cotangents]
    if len(targets) == 1:
        targets = [f"({targets[0]},)"]
    return format_call(targets, verb, operands, 1)


def _count_tensors(op: Op) -> int:
    """The number of an op's results, without its residual."""
    return sum(isinstance(value.type, TensorType) for value in op.results)


def _conversion(
    graph: Graph,
    node: str,
    op: Op,
    names: Names,
    operands: Sequence[str],
    size: str,
) -> Statement:
    """Emit the node's part of a conversion that moves nothing between nodes."""
    operand, result = graph.values[op.operands[0]], op.result
    assert operand.layout is not None
    assert result.layout is not None
    sources = _nodes_of(graph, operand.name)
    targets = graph.nodes(op)
    layouts = (operand.layout, result.layout)
    workers = graph.cluster.workers
    pieces = pieces_for(layouts, sources, targets, node, graph.batch, workers)
    target = names.name_of(result.name)
    if not pieces:
        rows = "0" if result.layout == "S" else size
        return _zeros(graph.tensor_type(result.name), target, rows)
    # From S to S on the same node, the node keeps all its rows.
    if pieces[0].is_whole or layouts == ("S", "S"):
        names.alias(result.name, operands[0])
        return Statement()
    if result.layout == "S":
        arguments = _shard_arguments(row_shard(targets, targets.index(node), workers))
        return Statement(
            format_call([target], "ops.split_rows", [*operands, *arguments], 1)
        )
    arguments = _shard_arguments(row_shard(sources, sources.index(node), workers))
    arguments.append(f"count={size}")
    lines = format_call([target], "ops.pad_rows", [*operands, *arguments], 1)
    return Statement(lines, uses_size=True)


def has_row_indices(graph: Graph, units: Iterable[Unit]) -> bool:
    """Whether a unit's function contains the indices of its node's rows.

    It does if it splits a whole value into rows, or pads rows to a whole value.
    """
    return any(
        is_conversion(op.kind)
        and (graph.values[op.operands[0]].layout == "S") != (op.result.layout == "S")
        for unit in units
        for op in unit.ops
    )


def _shard_arguments(shard: RowShard) -> list[str]:
    return [f"own={literal(shard.part_indices)}", f"parts={shard.num_parts}"]


def _zeros(kind: TensorType, target: str, size: str) -> Statement:
    sizes = [size if d == "batch" else str(d) for d in kind.shape]
    shape = f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    arguments = ["value=0.0", f'dtype="{kind.dtype}"', f"shape={shape}"]
    lines = format_call([target], "ops.constant", arguments, 1)
    return Statement(lines, uses_size=kind.has_batch)
