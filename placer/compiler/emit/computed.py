"""Emits computed ops as calls in the jitted functions of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from placer import ops
from placer.compiler.emit import notes
from placer.compiler.emit.bundles import Bundle
from placer.compiler.emit.code import Call, Expression, literal
from placer.compiler.emit.hook import Hook
from placer.compiler.emit.keywords import takes_count
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_conversion
from placer.compiler.schedule.units import Unit
from placer.place.layouts.moved_pieces import Conversion
from placer.place.layouts.partition import RowShard, row_shard


class OpWriter:
    """Writes the statements of one function.

    Attributes:
        numbers: the static arguments in the statements. If batches may be short, these
            are `count`, `rows` and `share`.
    """

    def __init__(self, hook: Hook, unit: Unit) -> None:
        self._graph, self._node, self._scope = hook.graph, hook.node, hook.scope
        self._constants = hook.constants
        self._full = hook.lowered.rows
        self._is_repeated = hook.graph.is_repeated(unit.ops[0])
        self._list_of: dict[str, str] = {}
        """By gradient, the variable with the list of a layer's gradients."""
        self.numbers: set[str] = set()
        self._noted: set[str] = set()
        """The kinds of ops with a comment in the function."""

    def _count(self) -> str:
        """Return the number of rows of the global batch."""
        return self._number("count", 1)

    def _rows(self) -> str:
        """Return the number of rows of the global batch or microbatch."""
        if self._is_repeated:
            return self._number("rows", self._graph.microbatches)
        return self._count()

    def _part_of_rows(self, op: Op) -> str:
        """Return the node's fraction of the batch; 1 for values without rows."""
        parts = len(self._graph.nodes(op))
        layouts = {self._graph.layout(name) for name in (*op.operands, op.name)}
        if parts == 1 or layouts == {"R"}:
            return "1.0"
        if self._full is not None:
            return f"1 / {parts}"
        self.numbers.add("share")
        return "share"

    def _number(self, name: str, parts: int) -> str:
        if self._full is not None:
            return str(self._full // parts)
        self.numbers.add(name)
        return name

    def list_gradients(
        self, variable: str, bundle: Bundle, gradients: Mapping[str, str]
    ) -> None:
        """Use one list variable for the gradients of each layer, if one op computes them."""
        for layer in bundle.layers:
            values = [gradients[member] for member in layer.members]
            op = self._graph.producers[values[0]]
            names = [value.name for value in op.results[-len(values) :]]
            if len(values) < 2 or not op.is_gradient or names != values:
                continue
            wrt = op.attrs["wrt"][-len(values) :]
            if [*wrt] == [*range(wrt[0], wrt[0] + len(wrt))]:
                name = self._scope.new_variable(f"{variable}_{layer.name}")
                self._scope.bind_list(name, values)
                self._list_of.update(dict.fromkeys(values, name))

    def statement(self, op: Op) -> Call | None:
        """Return the statement of an op; None if its result needs no statement."""
        graph, scope = self._graph, self._scope
        number = cotangent_literal(graph, op.results[0].name)
        if number is not None:
            scope.bind(op.name, Expression(number))
            return None
        if op.is_gradient:
            return self._gradient(op)
        if op.kind == "accumulate":
            parts = [n for n in op.operands if self._node in _nodes_of(graph, n)]
            if not parts:
                return self._zeros(op)
            if len(parts) == 1:
                scope.bind(op.name, scope[parts[0]])
                return None
            return self._call("ops.accumulate", parts, (), [scope.text(op.name)])
        if is_conversion(op.kind):
            return self._conversion(op)
        function, keywords = self._constants.function_of(op)
        if takes_count(graph, op):
            keywords.append(f"count={self._count()}")
            scope.names.conventions.add("count")
        note = ""
        if ops.find(op.kind).own_part is not None:
            share = self._part_of_rows(op)
            keywords.append(f"share={share}")
            if op.kind not in self._noted:
                self._noted.add(op.kind)
                note = notes.of_share(op, share)
        targets = [scope.text(value.name) for value in op.results]
        if not op.has_residual:
            call = self._call(function, op.operands, keywords, targets)
            return replace(call, note=note, is_above=True)
        *outputs, residual = targets
        output = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
        return self._call(
            f"{function}.forward", op.operands, keywords, [output, residual]
        )

    def _call(
        self,
        function: str,
        operands: Iterable[str],
        keywords: Iterable[str],
        targets: Sequence[str],
    ) -> Call:
        arguments = self._scope.collapse([self._scope[name] for name in operands])
        return Call(function, [*arguments, *keywords], targets)

    def _gradient(self, op: Op) -> Call:
        scope = self._scope
        forward = self._graph.producers[op.operands[0]]
        wrt = dict(zip(op.attrs["wrt"], op.results, strict=True))
        targets: list[str] = []
        for i in range(len(forward.operands)):
            target = "_"
            if i in wrt:
                name = wrt[i].name
                listed = self._list_of.get(name)
                target = f"*{listed}" if listed else scope.text(name)
            if target == "_" or target not in targets:
                targets.append(target)
        operands = [scope[name] for name in op.operands]
        if "cotangents" in op.attrs:  # None: the loss does not use the result
            indices = op.attrs["cotangents"]
            given = dict(zip(indices, operands[-len(indices) :], strict=True))
            operands = operands[: -len(indices)]
            operands += [
                given.get(i, Expression("None")) for i in range(len(forward.tensors))
            ]
        function, _ = self._constants.function_of(forward)
        arguments = scope.collapse(operands)
        return Call(f"{function}.backward", arguments, targets, is_tuple=True)

    def _conversion(self, op: Op) -> Call | None:
        """Return this node's part of a conversion without messages."""
        graph, node = self._graph, self._node
        operand, result = op.operands[0], op.name
        sources, targets = _nodes_of(graph, operand), graph.nodes(op)
        layouts = graph.layout(operand), graph.layout(result)
        workers = graph.cluster.workers
        own = Conversion(layouts, sources, targets, graph.batch, workers).pieces_for(
            node
        )
        if not own:
            return self._zeros(op)
        if own[0].is_whole or layouts == ("S", "S"):  # the node has every row it needs
            self._scope.bind(result, self._scope[operand])
            return None
        if layouts[1] == "S":
            share = _share(row_shard(targets, targets.index(node), workers))
            function = "ops.split_rows"
        else:
            share = _share(row_shard(sources, sources.index(node), workers))
            share.append(f"count={self._rows()}")
            function = "ops.pad_rows"
        return self._call(function, op.operands, share, [self._scope.text(op.name)])

    def _zeros(self, op: Op) -> Call:
        """Return a constant zero for a value without a part on this node."""
        kind = self._graph.tensor_type(op.name)
        is_empty = is_conversion(op.kind) and op.result.layout == "S"
        rows = "0" if is_empty or not kind.has_batch else self._rows()
        sizes = [rows if d == "batch" else str(d) for d in kind.shape]
        shape = f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
        arguments = ["value=0.0", f"dtype={literal(kind.dtype)}", f"shape={shape}"]
        return Call("ops.constant", arguments, [self._scope.text(op.name)])


def cotangent_literal(graph: Graph, name: str) -> str | None:
    """Return a constant cotangent as a Python number, such as 1.0 for the loss, or None."""
    op = graph.producers[name]
    if op.kind != "constant" or op.operands or graph.tensor_type(name).shape:
        return None
    users = graph.uses.get(name, ())
    if not users or not all(user.is_gradient for user in users):
        return None
    return literal(op.attrs["value"])


def has_row_indices(graph: Graph, units: Iterable[Unit]) -> bool:
    """Whether functions split values into the node's rows, or pad its rows to whole values."""
    return any(
        is_conversion(op.kind)
        and (graph.values[op.operands[0]].layout == "S") != (op.result.layout == "S")
        for unit in units
        for op in unit.ops
    )


def _nodes_of(graph: Graph, name: str) -> tuple[str, ...]:
    return graph.nodes(graph.producers[name])


def _share(share: RowShard) -> list[str]:
    return [f"own={literal(share.part_indices)}", f"parts={share.num_parts}"]
