"""A segment of one node as a jitted function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placer import ops
from placer.analysis.units import LoweredGraph, Unit
from placer.emit.bundles import Bundle, Stars, collapse, stars_of
from placer.emit.code import (
    INDENT,
    Line,
    format_call,
    format_def,
    format_return,
    literal,
)
from placer.emit.names import Scope, root
from placer.emit.roles import spec_op
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
    """What is written for one op: lines, and whether they need the number of rows of the
    batch, and of the microbatch."""

    lines: Sequence[str] = ()
    counts: bool = False
    sizes: bool = False


@dataclass(frozen=True, slots=True)
class Outputs:
    """How the outputs of a function are grouped.

    `saved` are variables that hold what later functions need, with the values in them;
    `gradients` are variables of the class of a bundle, with the gradient of each member.
    """

    saved: Mapping[str, Sequence[str]]
    gradients: Mapping[str, tuple[Bundle, Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Function:
    """An emitted function: its text, the variables it takes and returns, and which
    numbers of rows."""

    name: str
    lines: tuple[Line, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    static: tuple[str, ...] = ()


def function(
    graph: Graph,
    node: str,
    unit: Unit,
    scope: Scope,
    lowered: LoweredGraph,
    name: str,
    bundles: Mapping[str, Bundle],
    stars: Stars,
    outputs: Outputs,
) -> Function | None:
    """The ops of a unit as one jitted function of its inputs. None where it returns
    nothing but its inputs.

    It takes `count`, and `rows` of a microbatch, which are static, where not every batch
    is full. In training an input that another segment computes is passed even if XLA
    would not use it (`keep_unused`): the function is then over only when that segment
    is, which updates in place count on.
    """
    full = lowered.rows
    count = size = "count" if full is None else str(full)
    if graph.is_repeated(unit.ops[0]):
        size = "rows" if full is None else str(full // graph.microbatches)
    inputs = dict.fromkeys(root(scope.expression_of(name)) for name in unit.inputs)
    arguments = tuple(name for name in inputs if name is not None)
    for variable, values in outputs.saved.items():
        for value in values:
            scope.bind(value, f"{variable}.{scope.expression_of(value)}")
    writer = _Body(graph, node, scope, stars, _Rows(count, size))
    for variable, (bundle, of_member) in outputs.gradients.items():
        writer.gather(variable, bundle, of_member)
    statements = [writer.statement(op) for op in unit.ops]
    saved = [
        variable
        for variable, values in outputs.saved.items()
        if any(root(scope.expression_of(value)) == variable for value in values)
    ]
    body = [Line(f"{INDENT}{variable} = ops.Saved()", (name,)) for variable in saved]
    for op, statement in zip(unit.ops, statements, strict=True):
        body += [Line(text, (name, spec_op(graph, op))) for text in statement.lines]
    gathered = {v for _, values in outputs.gradients.values() for v in values.values()}
    plain = dict.fromkeys(
        scope.expression_of(value) for value in unit.outputs if value not in gathered
    )
    results = [
        name
        for name in plain
        if (of := root(name)) is not None and of not in arguments and of not in saved
    ]
    results += saved
    if not results and not outputs.gradients:
        return None
    ends = [writer.gathered(*each) for each in outputs.gradients.values()]
    for variable, (bundle, of_member) in outputs.gradients.items():
        for member, expression in bundle.fields(variable).items():
            scope.bind(of_member[member], expression)
    if not results and len(ends) == 1:
        bundle_name, made = ends[0]
        returned = format_call([], f"return {bundle_name}", made, 1)
    else:
        for variable, (bundle_name, made) in zip(outputs.gradients, ends, strict=True):
            built = format_call([variable], bundle_name, made, 1)
            body += [Line(line, (name,)) for line in built]
        results += outputs.gradients
        returned = format_return(results, 1)
        if len(results) == 1 and body[-1].text.startswith(f"{INDENT}{results[0]} = "):
            text, about = body.pop()
            body.append(Line(text.replace(f"{results[0]} = ", "return ", 1), about))
            returned = []
    body += [Line(line, (name,)) for line in returned]
    results = results or [*outputs.gradients]
    needed = {count for statement in statements if statement.counts}
    needed |= {size for statement in statements if statement.sizes}
    static = tuple(name for name in ("count", "rows") if name in needed)
    parameters = [*_annotated(arguments, bundles)]
    options = []
    if static:
        parameters += ["*", *static]
        named = literal(static[0]) if len(static) == 1 else literal(static)
        options.append(f"static_argnames={named}")
    if not lowered.evaluating and is_awaited(graph, unit.inputs):
        options.append("keep_unused=True")
    head = (
        f"@functools.partial(jax.jit, {', '.join(options)})" if options else "@jax.jit"
    )
    lines = [*map(Line, [head, *format_def(name, parameters)]), *body]
    return Function(name, tuple(lines), arguments, tuple(results), static)


def _annotated(arguments: Sequence[str], bundles: Mapping[str, Bundle]) -> list[str]:
    return [
        f"{name}: {bundles[name].name}" if name in bundles else name
        for name in arguments
    ]


def is_awaited(graph: Graph, names: Iterable[str]) -> bool:
    """Whether some segment computes one of these values, here or on another node."""
    made = {id(op): op for op in map(graph.producers.__getitem__, names)}
    return any(
        is_computed(op)
        or (
            op.kind in FLAT_VIEWS | COPIES | MICROBATCH_CONVERSIONS
            and is_awaited(graph, op.operands)
        )
        or op.kind == "send_and_recv"  # of what others compute
        or (
            op.kind == "listen_and_serv"
            and is_awaited(graph, graph.sends[op.attrs["edge"]].operands)
        )
        for op in made.values()
    )


def cotangent_literal(graph: Graph, name: str) -> str | None:
    """The Python number of a constant that only backward takes, as the gradient of the
    loss is; None for any other value."""
    op = graph.producers[name]
    if op.kind != "constant" or op.operands or graph.tensor_type(name).shape:
        return None
    users = graph.uses.get(name, ())
    if not users or not all(user.is_gradient for user in users):
        return None
    return literal(op.attrs["value"])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Numbers of rows, as text: of the global batch, and of what goes through at once."""

    count: str
    size: str


class _Body:
    """Writes the statements of one function."""

    def __init__(
        self,
        graph: Graph,
        node: str,
        scope: Scope,
        stars: Stars,
        rows: _Rows,
    ) -> None:
        self._graph, self._node, self._scope = graph, node, scope
        self._stars, self._rows = stars, rows
        self._lists: Stars = {}
        """The lists with the gradients of a layer's parameters."""
        self._list_of: dict[str, str] = {}

    def gather(
        self, variable: str, bundle: Bundle, of_member: Mapping[str, str]
    ) -> None:
        """Have the gradients of a layer in one list, where one op computes all of them."""
        for layer in bundle.layers:
            values = [of_member[member] for member in layer.members]
            op = self._graph.producers[values[0]]
            names = [value.name for value in op.results[-len(values) :]]
            if len(values) < 2 or not op.is_gradient or names != values:
                continue
            wrt = op.attrs["wrt"][-len(values) :]
            if [*wrt] != [*range(wrt[0], wrt[0] + len(wrt))]:
                continue
            name = self._scope.new_variable(f"{variable}_{layer.name}")
            items = [f"{name}[{i}]" for i in range(len(values))]
            self._lists |= stars_of([(f"*{name}", items)])
            for i, value in enumerate(values):
                self._scope.bind(value, f"{name}[{i}]")
                self._list_of[value] = name

    def gathered(
        self, bundle: Bundle, of_member: Mapping[str, str]
    ) -> tuple[str, list[str]]:
        """The class of a bundle, and its arguments from these gradients."""
        values = {m: self._scope.expression_of(value) for m, value in of_member.items()}
        return bundle.name, bundle.arguments(values, self._lists)

    def statement(self, op: Op) -> Statement:
        """The op as a call."""
        graph, scope = self._graph, self._scope
        number = cotangent_literal(graph, op.results[0].name)
        if number is not None:
            scope.bind(op.name, number)
            return Statement()
        operands = [scope.expression_of(n) for n in op.operands if self._is_here(op, n)]
        if op.is_gradient:
            return Statement(self._gradient(op, operands))
        if op.kind == "accumulate" and len(operands) == 1:
            scope.bind(op.name, operands[0])
            return Statement()
        if op.kind == "accumulate" and not operands:  # no part of the sum is here
            size = self._rows.size
            return _zeros(
                graph.tensor_type(op.name), scope.expression_of(op.name), size
            )
        if is_conversion(op.kind):
            return self._conversion(op, operands)
        arguments = [*self._collapse(operands), *_keywords(op, scope)]
        if counts := _counts(graph, op):
            arguments.append(f"count={self._rows.count}")
        targets = [scope.expression_of(value.name) for value in op.results]
        saves = isinstance(op.results[-1].type, ResidualType)
        if saves and len(targets) > 2:
            *outs, kept = targets
            targets = [f"({', '.join(outs)})", kept]
        verb = f"ops.{op.kind}.forward" if saves else f"ops.{op.kind}"
        return Statement(format_call(targets, verb, arguments, 1), counts)

    def _collapse(self, operands: Sequence[str]) -> list[str]:
        return collapse(operands, self._stars, self._lists)

    def _is_here(self, op: Op, name: str) -> bool:
        """Whether the node has an operand: sums and conversions may do without."""
        if op.kind != "accumulate" and not is_conversion(op.kind):
            return True
        return self._node in _nodes_of(self._graph, name)

    def _gradient(self, op: Op, operands: Sequence[str]) -> list[str]:
        forward = self._graph.producers[op.operands[0]]
        wrt = dict(zip(op.attrs["wrt"], op.results, strict=True))
        targets: list[str] = []
        for i in range(len(forward.operands)):
            if i not in wrt:
                targets.append("_")
                continue
            name = wrt[i].name
            if name not in self._list_of:
                targets.append(self._scope.expression_of(name))
            elif f"*{self._list_of[name]}" not in targets:
                targets.append(f"*{self._list_of[name]}")
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
        return format_call(targets, verb, self._collapse(operands), 1)

    def _conversion(self, op: Op, operands: Sequence[str]) -> Statement:
        """A conversion that moves nothing between nodes, as this node does it."""
        graph, node, size = self._graph, self._node, self._rows.size
        operand, result = graph.values[op.operands[0]], op.result
        assert operand.layout is not None
        assert result.layout is not None
        sources = _nodes_of(graph, operand.name)
        targets = graph.nodes(op)
        layouts = (operand.layout, result.layout)
        workers = graph.cluster.workers
        mine = pieces_for(layouts, sources, targets, node, graph.batch, workers)
        target = self._scope.expression_of(result.name)
        if not mine:
            rows = "0" if result.layout == "S" else size
            return _zeros(graph.tensor_type(result.name), target, rows)
        if mine[0].is_whole or layouts == ("S", "S"):  # who keeps rows keeps all it has
            self._scope.bind(result.name, operands[0])
            return Statement()
        if result.layout == "S":
            share = _share(row_shard(targets, targets.index(node), workers))
            return Statement(
                format_call([target], "ops.split_rows", [*operands, *share], 1)
            )
        share = _share(row_shard(sources, sources.index(node), workers))
        arguments = [*operands, *share, f"count={size}"]
        return Statement(
            format_call([target], "ops.pad_rows", arguments, 1), sizes=True
        )


def _counts(graph: Graph, op: Op) -> bool:
    """Whether the op's function takes the number of rows."""
    declaration = ops.find(op.kind)
    if declaration.takes_count is takes_no_count:
        return False
    types = [graph.tensor_type(name) for name in op.operands]
    return declaration.takes_count(
        types, complete(declaration, declared_attrs(op.attrs))
    )


def _nodes_of(graph: Graph, name: str) -> tuple[str, ...]:
    return graph.nodes(graph.producers[name])


def _keywords(op: Op, scope: Scope) -> list[str]:
    known = {attr.name for attr in ops.find(op.kind).attrs if attr.compiler_only}
    return [
        f"{key}={_written(op, key, value, scope)}"
        for key, value in declared_attrs(op.attrs).items()
        if key not in known
    ]


def _written(op: Op, key: str, value: object, scope: Scope) -> str:
    """An attribute as Python text; the function of a `call` by its name in its module."""
    if op.kind == "call" and key == "fn":
        module, _, name = str(value).partition(":")
        return f"{scope.modules[module]}.{name}"
    if op.kind == "call" and key == "args":
        return repr(value)  # in single quotes, since it holds double ones
    return literal(value)


def _tensors(op: Op) -> int:
    """How many results an op has, the residual aside."""
    return sum(isinstance(value.type, TensorType) for value in op.results)


def has_row_indices(graph: Graph, units: Iterable[Unit]) -> bool:
    """Whether the function of some unit names the rows that its node has: it takes them
    from a whole value, or puts them into one."""
    return any(
        is_conversion(op.kind)
        and (graph.values[op.operands[0]].layout == "S") != (op.result.layout == "S")
        for unit in units
        for op in unit.ops
    )


def _share(share: RowShard) -> list[str]:
    return [f"own={literal(share.part_indices)}", f"parts={share.num_parts}"]


def _zeros(kind: TensorType, target: str, size: str) -> Statement:
    sizes = [size if d == "batch" else str(d) for d in kind.shape]
    shape = f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    arguments = ["value=0.0", f'dtype="{kind.dtype}"', f"shape={shape}"]
    lines = format_call([target], "ops.constant", arguments, 1)
    return Statement(lines, sizes=kind.has_batch)
