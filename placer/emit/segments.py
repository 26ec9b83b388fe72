"""A segment of one node as a jitted function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from placer import ops
from placer.analysis.units import Phase, Unit, purpose
from placer.emit.code import INDENT, call, define, give, literal
from placer.emit.names import Names
from placer.graph.graph import Graph, Op
from placer.graph.kinds import (
    COPIES,
    FLAT,
    OVER,
    declared_attrs,
    is_computed,
    is_conversion,
)
from placer.layouts.conversions import Share, pieces, share_of
from placer.ops.attributes import complete
from placer.ops.declaration import never
from placer.types import ResidualType, TensorType


@dataclass(frozen=True, slots=True)
class Statement:
    """What is written for one op: lines, whether they need the number of rows of the
    batch, and of the microbatch."""

    lines: Sequence[str] = ()
    counts: bool = False
    sizes: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """An emitted function: its text, the names it takes and gives, and which numbers of
    rows."""

    name: str
    lines: tuple[str, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    static: tuple[str, ...] = ()


def function(
    graph: Graph, node: str, unit: Unit, names: Names, phase: Phase
) -> Function | None:
    """The unit's ops as one jitted function of its inputs, named by its purpose. None
    where it gives nothing but operands as they are.

    It takes `count`, and `rows` of a microbatch, which are static, where not every batch is full.
    In training what it takes of other segments is kept though it may be unused: its results are there only
    when those are over, as `in_place` counts on.
    """
    full = phase.rows
    count = size = "count" if full is None else str(full)
    if graph.is_repeated(unit.ops[0]):
        size = "rows" if full is None else str(full // graph.microbatches)
    rows = _Rows(count, size)
    statements = [_statement(graph, node, op, names, rows) for op in unit.ops]
    body = [line for statement in statements for line in statement.lines]
    # A value that a conversion leaves as it is goes by the name that it had.
    taken = dict.fromkeys(map(names.of, unit.inputs))
    arguments = tuple(taken)
    made = dict.fromkeys(map(names.of, unit.outputs))
    results = tuple(result for result in made if result not in taken)
    if not results:
        return None
    name = names.fresh(purpose(unit, phase.evaluating))
    needed = {count for statement in statements if statement.counts}
    needed |= {size for statement in statements if statement.sizes}
    static = tuple(name for name in ("count", "rows") if name in needed)
    parameters = [*arguments]
    options = []
    if static:
        parameters += ["*", *static]
        named = literal(static[0]) if len(static) == 1 else literal(static)
        options.append(f"static_argnames={named}")
    if not phase.evaluating and _is_awaited(graph, unit.inputs):
        options.append("keep_unused=True")
    head = (
        f"@functools.partial(jax.jit, {', '.join(options)})" if options else "@jax.jit"
    )
    returned = give(results, 1)
    if len(results) == 1 and body[-1].startswith(f"{INDENT}{results[0]} = "):
        body[-1] = body[-1].replace(f"{results[0]} = ", "return ", 1)
        returned = []
    lines = [head, *define(name, parameters), *body, *returned]
    return Function(name, tuple(lines), arguments, results, static)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Numbers of rows, as text: of the global batch, and of what goes through at once."""

    count: str
    size: str


def _statement(graph: Graph, node: str, op: Op, names: Names, rows: _Rows) -> Statement:
    """The op as a call."""
    operands = [names.of(n) for n in op.operands if _is_here(graph, node, op, n)]
    if op.is_gradient:
        return Statement(_gradient(graph, op, names, operands))
    if op.kind == "accumulate" and len(operands) == 1:
        names.alias(op.name, operands[0])
        return Statement()
    if op.kind == "accumulate" and not operands:  # no part of the sum is here
        return _zeros(graph.tensor(op.name), names.of(op.name), rows.size)
    if is_conversion(op.kind):
        return _conversion(graph, node, op, names, operands, rows.size)
    arguments = [*operands, *_keywords(op, names)]
    if counts := _counts(graph, op):
        arguments.append(f"count={rows.count}")
    targets = [names.of(value.name) for value in op.results]
    saves = isinstance(op.results[-1].type, ResidualType)
    if saves and len(targets) > 2:
        *outs, kept = targets
        targets = [f"({', '.join(outs)})", kept]
    verb = f"ops.{op.kind}.forward" if saves else f"ops.{op.kind}"
    return Statement(call(targets, verb, arguments, 1), counts)


def _is_awaited(graph: Graph, names: Iterable[str]) -> bool:
    """Whether some segment computes one of these values, here or elsewhere."""
    made = {id(op): op for op in map(graph.producers.__getitem__, names)}
    return any(
        is_computed(op)
        or (op.kind in FLAT | COPIES | OVER and _is_awaited(graph, op.operands))
        or op.kind == "send_and_recv"  # of what others compute
        or (
            op.kind == "listen_and_serv"
            and _is_awaited(graph, graph.sends[op.attrs["edge"]].operands)
        )
        for op in made.values()
    )


def _counts(graph: Graph, op: Op) -> bool:
    """Whether the op's function takes the number of rows."""
    declaration = ops.find(op.kind)
    if declaration.counts is never:
        return False
    types = [graph.tensor(name) for name in op.operands]
    return declaration.counts(types, complete(declaration, declared_attrs(op.attrs)))


def _is_here(graph: Graph, node: str, op: Op, name: str) -> bool:
    """Whether the node has an operand: sums and conversions may do without."""
    if op.kind != "accumulate" and not is_conversion(op.kind):
        return True
    return node in _nodes_of(graph, name)


def _nodes_of(graph: Graph, name: str) -> tuple[str, ...]:
    return graph.nodes(graph.producers[name])


def _keywords(op: Op, names: Names) -> list[str]:
    known = {attr.name for attr in ops.find(op.kind).attrs if attr.known}
    return [
        f"{key}={_written(op, key, value, names)}"
        for key, value in declared_attrs(op.attrs).items()
        if key not in known
    ]


def _written(op: Op, key: str, value: object, names: Names) -> str:
    """An attribute as Python text; the function of a `call` by its name in its module."""
    if op.kind == "call" and key == "fn":
        module, _, name = str(value).partition(":")
        return f"{names.modules[module]}.{name}"
    if op.kind == "call" and key == "args":
        return repr(value)  # in single quotes, since it holds double ones
    return literal(value)


def _gradient(graph: Graph, op: Op, names: Names, operands: Sequence[str]) -> list[str]:
    forward = graph.producers[op.operands[0]]
    wrt = dict(zip(op.attrs["wrt"], op.results, strict=True))
    targets = [
        names.of(wrt[i].name) if i in wrt else "_" for i in range(len(forward.operands))
    ]
    verb = f"ops.{op.forward_kind}.backward"
    if "cotangents" in op.attrs:  # None for the results that the loss does not need
        of_loss = op.attrs["cotangents"]
        taken, given = operands[: -len(of_loss)], operands[-len(of_loss) :]
        cotangents = ["None"] * _tensors(forward)
        for index, name in zip(of_loss, given, strict=True):
            cotangents[index] = name
        operands = [*taken, *cotangents]
    if len(targets) == 1:
        targets = [f"({targets[0]},)"]
    return call(targets, verb, operands, 1)


def _tensors(op: Op) -> int:
    """How many results an op has, the residual aside."""
    return sum(isinstance(value.type, TensorType) for value in op.results)


def _conversion(
    graph: Graph,
    node: str,
    op: Op,
    names: Names,
    operands: Sequence[str],
    size: str,
) -> Statement:
    """A conversion that moves nothing between nodes, as this node does it."""
    operand, result = graph.values[op.operands[0]], op.result
    assert operand.layout is not None
    assert result.layout is not None
    sources = _nodes_of(graph, operand.name)
    targets = graph.nodes(op)
    layouts = (operand.layout, result.layout)
    workers = graph.cluster.workers
    mine = pieces(layouts, sources, targets, node, graph.batch, workers)
    target = names.of(result.name)
    if not mine:
        rows = "0" if result.layout == "S" else size
        return _zeros(graph.tensor(result.name), target, rows)
    if mine[0].whole or layouts == ("S", "S"):  # who keeps rows keeps all that it has
        names.alias(result.name, operands[0])
        return Statement()
    if result.layout == "S":
        arguments = _share(share_of(targets, targets.index(node), workers))
        return Statement(call([target], "ops.split_rows", [*operands, *arguments], 1))
    arguments = _share(share_of(sources, sources.index(node), workers))
    arguments.append(f"count={size}")
    lines = call([target], "ops.pad_rows", [*operands, *arguments], 1)
    return Statement(lines, sizes=True)


def names_rows(graph: Graph, units: Iterable[Unit]) -> bool:
    """Whether the function of some unit names the rows that its node has: it takes them
    from a whole value, or puts them into one."""
    return any(
        is_conversion(op.kind)
        and (graph.values[op.operands[0]].layout == "S") != (op.result.layout == "S")
        for unit in units
        for op in unit.ops
    )


def _share(share: Share) -> list[str]:
    return [f"own={literal(share.own)}", f"parts={share.parts}"]


def _zeros(kind: TensorType, target: str, size: str) -> Statement:
    sizes = [size if d == "batch" else str(d) for d in kind.shape]
    shape = f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    arguments = ["value=0.0", f'dtype="{kind.dtype}"', f"shape={shape}"]
    lines = call([target], "ops.constant", arguments, 1)
    return Statement(lines, sizes=kind.has_batch)
