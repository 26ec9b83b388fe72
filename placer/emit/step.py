"""The `step` or `evaluate` function of a node program: a statement for each unit."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence

from placer.analysis.streamed_updates import find_streamed_updates
from placer.analysis.tasks import Task, split_into_tasks
from placer.analysis.units import LoweredGraph, Unit
from placer.ast_lock import AST_LOCK
from placer.build.plan import Table
from placer.config import optimizers
from placer.emit.code import INDENT, format_call, format_del, literal, wrap_words
from placer.emit.names import Names
from placer.emit.saved_values import SavedValues
from placer.emit.segments import Function, emit_function
from placer.graph.graph import MICROBATCH_REDUCTIONS, Graph, Op
from placer.graph.kinds import COPIES, MICROBATCH_CONVERSIONS, is_computed, is_update
from placer.types import TensorType


def emit_hook(
    node: str,
    lowered: LoweredGraph,
    names: Names,
    tables: Sequence[Table],
    task_names: Sequence[str],
) -> tuple[list[Function], list[str]]:
    """Emit the node's jitted functions, and the lines of the function that calls them.

    `tables` and `task_names` are the node's tables and scheduled tasks.
    """
    units = lowered.units_on(node)
    functions: dict[int, Function] = {}
    for i, unit in enumerate(units):
        if unit.computed:
            function = emit_function(lowered.graph, node, unit, names, lowered)
            if function is not None:
                functions[i] = function
    writer = _Writer(lowered, node, names, tables, units)
    by_unit = {id(unit): functions[i] for i, unit in enumerate(units) if i in functions}
    if lowered.graph.microbatches > 1:
        lines = writer.emit_tasks(by_unit, units, task_names)
        return list(functions.values()), [_head(lowered), *(lines or _nothing(node))]
    depth = 1
    lines = []
    batches = lowered.evaluating and any(not unit.once for unit in units)
    for unit in units:
        if batches and depth == 1 and not unit.once:
            lines.append(f"{INDENT}for _ in node.batches():")
            depth = 2
        lines += writer.emit_unit(by_unit, unit, depth)
    return list(functions.values()), [_head(lowered), *(lines or _nothing(node))]


def _head(lowered: LoweredGraph) -> str:
    name = "evaluate" if lowered.evaluating else "step"
    return f"def {name}(node: runtime.Node) -> None:"


def _nothing(node: str) -> list[str]:
    nothing = "this server stores no block" if node.startswith("ps") else "no op"
    return [f'{INDENT}"""Nothing to do: {nothing}."""']


def _emit_call(function: Function, depth: int) -> list[str]:
    static = (f"{each}=node.{each}" for each in function.static)
    arguments = [*function.arguments, *static]
    return format_call(function.results, function.name, arguments, depth)


def _assigned_names(lines: Sequence[str]) -> list[str]:
    """The variables that the statements of a task assign, each once, in order."""
    with AST_LOCK:
        module = ast.parse(textwrap.dedent("\n".join(lines)))
    names = (
        node.id
        for statement in module.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return [name for name in dict.fromkeys(names) if name != "_"]


class _Writer:
    """Writes the statements of one graph, in program order."""

    def __init__(
        self,
        lowered: LoweredGraph,
        node: str,
        names: Names,
        tables: Sequence[Table],
        units: Sequence[Unit],
    ) -> None:
        self.graph, self.node, self.names = lowered.graph, node, names
        self.table_of = {b.name: table for table in tables for b in table.blocks}
        self.opened: set[str] = set()
        """The tables whose parameters have been read."""
        self.gathered: dict[tuple[str, str], dict[str, Op]] = {}
        """The ops so far of each call that needs one for every block of a table."""
        self.used = {name for unit in units for op in unit.ops for name in op.operands}
        self.streamed = find_streamed_updates(lowered.graph, node, tables)
        self.streamed_receives = {
            id(op) for receives in self.streamed.values() for op in receives
        }

    def emit_unit(
        self, functions: Mapping[int, Function], unit: Unit, depth: int
    ) -> list[str]:
        """Emit a unit; `functions` are those of segments, by the unit's identity."""
        if id(unit) in functions:
            return _emit_call(functions[id(unit)], depth)
        return [] if unit.computed else self._emit_statements(unit, depth)

    def emit_tasks(
        self,
        functions: Mapping[int, Function],
        units: Sequence[Unit],
        task_names: Sequence[str],
    ) -> list[str]:
        """Emit a step with microbatches: a loop that runs tasks by their names."""
        step = split_into_tasks(self.graph, units)
        lines = self._emit_task(functions, step.before, 1)
        if step.tasks:
            lines += wrap_words(f"{INDENT}# ", task_names)
            lines.append(f"{INDENT}for block in node.microbatches():")
        saved = SavedValues(self.names, step.tasks)
        for i, task in enumerate(step.tasks):
            head = "if" if i == 0 else "elif"
            lines.append(f"{INDENT * 2}{head} block == {literal(task.name)}:")
            body = (
                saved.emit_loads(i, 3)
                + self._emit_task(functions, task, 3)
                + saved.emit_saves(i, 3)
            )
            lines += body or [f"{INDENT * 3}pass  # its results are its operands"]
            # Without `del`, a microbatch's values would live until the next one's.
            if task.repeated and (assigned := _assigned_names(body)):
                lines += format_del(assigned, 3)
        return lines + self._emit_task(functions, step.after, 1)

    def _emit_task(
        self, functions: Mapping[int, Function], task: Task, depth: int
    ) -> list[str]:
        lines = []
        if task.totals:
            values = [self.names.name_of(op.name) for op in task.totals]
            named = [literal(self.names.name_of(op.operands[0])) for op in task.totals]
            targets = [f"({values[0]},)"] if len(values) == 1 else values
            lines += format_call(targets, "node.totals", named, depth)
        for unit in task.units:
            lines += self.emit_unit(functions, unit, depth)
        return lines

    def _emit_microbatch_conversion(self, unit: Unit, depth: int) -> list[str]:
        """Combine values of the microbatches, or give each microbatch its part."""
        kind = unit.ops[0].kind
        if kind in MICROBATCH_REDUCTIONS.values():
            verb = kind.removesuffix("_microbatches").removesuffix("_microbatch")
            operands = [self.names.name_of(op.operands[0]) for op in unit.ops]
            arguments = [f"{name}={name}" for name in dict.fromkeys(operands)]
            return format_call([], f"node.{verb}", arguments, depth)
        (op,) = unit.ops
        verb = "split" if kind == "split_microbatches" else "first"
        operands = [self.names.name_of(op.operands[0])]
        return format_call(
            [self.names.name_of(op.name)], f"node.{verb}", operands, depth
        )

    def _emit_statements(self, unit: Unit, depth: int) -> list[str]:
        op = unit.ops[0]
        if op.kind in COPIES:
            return self._emit_copy(op, depth)
        if op.kind in MICROBATCH_CONVERSIONS:
            return self._emit_microbatch_conversion(unit, depth)
        match op.kind:
            case "read":
                return self._emit_read(unit.ops, depth)
            case "parameter":
                return [x for p in unit.ops for x in self._emit_parameter(p, depth)]
            case "assemble":
                return self._emit_assemble(op, depth)
            case "listen_and_serv":
                return self._emit_receive(op, depth)
            case "send_and_recv":
                return self._emit_request(op, depth)
            case "send":
                return self._emit_send(op, depth)
            case "record":
                return self._emit_record(unit.ops, depth)
            case "cut":
                return self._emit_cut(op, depth)
            case "store":
                if is_update(self.graph.producers[op.operands[1]].kind):
                    return []  # the update has stored it
        return self._emit_update(op, depth)

    def _emit_read(self, reads: Sequence[Op], depth: int) -> list[str]:
        targets = [self.names.name_of(op.name) for op in reads]
        return format_call(
            targets, "node.read", [literal(op.name) for op in reads], depth
        )

    def _emit_parameter(self, op: Op, depth: int) -> list[str]:
        table = self.table_of[op.name]
        if table.name in self.opened:
            return []
        self.opened.add(table.name)
        blocks = [block.name for block in table.blocks]
        targets = [self.names.name_of(b) if b in self.used else "_" for b in blocks]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        return format_call(targets, "node.values", [literal(table.name)], depth)

    def _emit_assemble(self, op: Op, depth: int) -> list[str]:
        kind = op.result.type
        assert isinstance(kind, TensorType)
        arguments = [self.names.name_of(name) for name in op.operands]
        arguments.append(f"shape={literal(kind.shape)}")
        return format_call(
            [self.names.name_of(op.name)], "node.assemble", arguments, depth
        )

    def _emit_copy(self, op: Op, depth: int) -> list[str]:
        pairs = zip(op.operands, op.results, strict=True)
        used = [(name, value.name) for name, value in pairs if value.name in self.used]
        arguments = [self.names.name_of(name) for name, _ in used]
        targets = [self.names.name_of(name) for _, name in used]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        if op.kind != "memcpy_d2h":
            arguments.append(f"to={literal(self.graph.devices(op))}")
        elif self._has_local_user(op):
            arguments.append("wait=True")
        if "rows" in op.attrs:
            split = {value.name for value in op.results[: op.attrs["rows"]]}
            rows = sum(name in split for _, name in used)
            arguments += [f"rows={rows}"] * (rows > 0)
        return format_call(targets, f"node.{op.kind}", arguments, depth)

    def _has_local_user(self, op: Op) -> bool:
        """Whether a jitted function of this node uses a result of the copy."""
        users = (u for value in op.results for u in self.graph.uses[value.name])
        return any(is_computed(u) and self.node in self.graph.nodes(u) for u in users)

    def _emit_receive(self, op: Op, depth: int) -> list[str]:
        if id(op) in self.streamed_receives:
            return []  # the update receives the message
        edge, origin = op.attrs["edge"], op.attrs["from"]
        targets = [self.names.name_of(value.name) for value in op.results]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        comment = f"{INDENT * depth}# edge {edge}: from {origin}"
        notes = _conversion_notes(self.graph, self.graph.sends[edge])
        comment += "".join(f", {note}" for note in notes)
        return [comment, *format_call(targets, "node.receive", [str(edge)], depth)]

    def _emit_send(self, op: Op, depth: int) -> list[str]:
        edge, target = op.attrs["edge"], op.attrs["to"]
        notes = [f"edge {edge}: to {target}", *map(self._range_note, op.operands)]
        comment = wrap_words(f"{INDENT * depth}# ", [note for note in notes if note])
        values = [self.names.name_of(self._whole_value(name)) for name in op.operands]
        return [*comment, *format_call([], "node.send", [str(edge), *values], depth)]

    def _emit_request(self, op: Op, depth: int) -> list[str]:
        edge, back = op.attrs["edge"], op.attrs["back"]
        comment = f"# edge {edge}: to {op.attrs['to']}, edge {back}: the reply"
        notes = _conversion_notes(self.graph, self.graph.sends[back])
        targets = [self.names.name_of(value.name) for value in op.results]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        values = [self.names.name_of(self._whole_value(name)) for name in op.operands]
        arguments = [str(edge), *values]
        arguments.append(f"back={back}")
        return [
            f"{INDENT * depth}{', '.join([comment, *notes])}",
            *format_call(targets, "node.send_and_recv", arguments, depth),
        ]

    def _range_note(self, name: str) -> str:
        """The range of elements, flattened in C order, that are sent of a cut value."""
        producer = self.graph.producers[name]
        if producer.kind != "cut":
            return ""
        whole = self.names.name_of(producer.operands[0])
        return f"{whole}[{producer.attrs['start']}:{producer.attrs['stop']}]"

    def _whole_value(self, name: str) -> str:
        """The argument of `send` for a value: of a cut, the whole value.

        The runtime cuts it by the plan, without a copy.
        """
        producer = self.graph.producers[name]
        return producer.operands[0] if producer.kind == "cut" else name

    def _emit_cut(self, op: Op, depth: int) -> list[str]:
        users = self.graph.uses.get(op.name, ())
        if all(u.kind in _SENDS or self.node not in self.graph.nodes(u) for u in users):
            return []
        arguments = [self.names.name_of(op.operands[0])]
        arguments += [literal(op.attrs["start"]), literal(op.attrs["stop"])]
        return format_call([self.names.name_of(op.name)], "node.cut", arguments, depth)

    def _emit_record(self, records: Sequence[Op], depth: int) -> list[str]:
        pairs = [
            (op.attrs["metric"], self.names.name_of(op.operands[0])) for op in records
        ]
        if all(metric.isidentifier() for metric, _ in pairs):
            arguments = [f"{metric}={name}" for metric, name in pairs]
        else:
            inner = ", ".join(f"{literal(metric)}: {name}" for metric, name in pairs)
            arguments = [f"**{{{inner}}}"]
        return format_call([], "node.record", arguments, depth)

    def _emit_update(self, op: Op, depth: int) -> list[str]:
        """Emit one call for all blocks of a table, at the op of the last block."""
        table = self.table_of[op.operands[0]]
        ops = self.gathered.setdefault((table.name, op.kind), {})
        ops[op.operands[0]] = op
        if len(ops) < len(table.blocks):
            return []
        if is_update(op.kind) and table.name in self.streamed:
            return self._emit_streamed_update(table, depth)
        in_order = [ops[block.name] for block in table.blocks]
        operands = [
            [self.names.name_of(name) for name in each.operands[1:]]
            for each in in_order
        ]
        arguments = [literal(table.name)]
        if op.kind == "store":
            return format_call(
                [], "node.store", [*arguments, *(x for (x,) in operands)], depth
            )
        if self._is_second_phase(op):
            ratios = [ratio for _, ratio in operands]
            return format_call([], "node.update_by", [*arguments, *ratios], depth)
        arguments += [gradient for gradient, *_ in operands]
        scales = [scale for _, *scaled in operands for scale in scaled]
        if len(set(scales)) == 1:
            arguments.append(f"scale={scales[0]}")
        elif scales:
            arguments.append(f"scale=({', '.join(scales)})")
        if is_update(op.kind):
            return format_call([], "node.update", arguments, depth)
        targets = [self.names.name_of(each.name) for each in in_order]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        return format_call(targets, "node.direct", arguments, depth)

    def _emit_streamed_update(self, table: Table, depth: int) -> list[str]:
        lines = []
        for listen in self.streamed[table.name]:
            edge, origin = listen.attrs["edge"], listen.attrs["from"]
            several = len(self.graph.nodes(self.graph.sends[edge])) > 1
            note = "summed in node order and applied" if several else "applied"
            lines.append(
                f"{INDENT * depth}# edge {edge}: from {origin}, {note} as it arrives"
            )
        edges = [str(listen.attrs["edge"]) for listen in self.streamed[table.name]]
        return [
            *lines,
            *format_call([], "node.apply", [literal(table.name), *edges], depth),
        ]

    def _is_second_phase(self, op: Op) -> bool:
        """Whether the update is the second phase of a two-phase rule."""
        return is_update(op.kind) and optimizers.find(op.kind).is_two_phase


_SENDS = frozenset({"send", "send_and_recv"})


def _conversion_notes(graph: Graph, send: Op) -> list[str]:
    """How the messages of several senders become one value, for a comment."""
    if len(graph.nodes(send)) == 1:
        return []
    layouts = {graph.values[name].layout for name in send.operands}
    notes = {"P": "sums in node order", "S": "rows concatenated"}
    return [text for layout, text in notes.items() if layout in layouts]
