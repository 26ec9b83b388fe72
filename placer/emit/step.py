"""What a node does in one phase, a statement for each unit: `step` or `evaluate`."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence

from placer.analysis.streamed_updates import applied
from placer.analysis.tasks import Block, blocks
from placer.analysis.units import Phase, Unit
from placer.ast_lock import AST_LOCK
from placer.build.plan import Table
from placer.config import optimizers
from placer.emit.code import INDENT, call, forget, literal, wrapped
from placer.emit.names import Names
from placer.emit.saved_values import Kept
from placer.emit.segments import Function, function
from placer.graph.graph import TOGETHER, Graph, Op
from placer.graph.kinds import COPIES, OVER, is_computed, is_update
from placer.types import TensorType


def hook(
    node: str,
    phase: Phase,
    names: Names,
    tables: Sequence[Table],
    turns: Sequence[str],
) -> tuple[list[Function], list[str]]:
    """The functions that the node jits in a phase, and the lines of what calls them."""
    found = phase.units(node)
    functions: dict[int, Function] = {}
    for i, unit in enumerate(found):
        if unit.computed:
            made = function(phase.graph, node, unit, names, phase)
            if made is not None:
                functions[i] = made
    writer = _Writer(phase, node, names, tables, found)
    made_of = {id(unit): functions[i] for i, unit in enumerate(found) if i in functions}
    if phase.graph.microbatches > 1:
        lines = writer.microbatches(made_of, found, turns)
        return list(functions.values()), [_head(phase), *(lines or _nothing(node))]
    depth = 1
    lines = []
    batches = phase.evaluating and any(not unit.once for unit in found)
    for unit in found:
        if batches and depth == 1 and not unit.once:
            lines.append(f"{INDENT}for _ in node.batches():")
            depth = 2
        lines += writer.unit(made_of, unit, depth)
    return list(functions.values()), [_head(phase), *(lines or _nothing(node))]


def _head(phase: Phase) -> str:
    name = "evaluate" if phase.evaluating else "step"
    return f"def {name}(node: runtime.Node) -> None:"


def _nothing(node: str) -> list[str]:
    nothing = "this server holds no block" if node.startswith("ps") else "no op"
    return [f'{INDENT}"""Nothing to do: {nothing}."""']


def _called(made: Function, depth: int) -> list[str]:
    arguments = [*made.arguments, *(f"{each}=node.{each}" for each in made.static)]
    return call(made.results, made.name, arguments, depth)


def _assigned(lines: Sequence[str]) -> list[str]:
    """The variables that statements of a block assign, each once, in order."""
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
    """Writes the statements of one phase, in order."""

    def __init__(
        self,
        phase: Phase,
        node: str,
        names: Names,
        tables: Sequence[Table],
        found: Sequence[Unit],
    ) -> None:
        self.graph, self.node, self.names = phase.graph, node, names
        self.table_of = {b.name: table for table in tables for b in table.blocks}
        self.opened: set[str] = set()
        self.gathered: dict[tuple[str, str], dict[str, Op]] = {}
        self.used = {name for unit in found for op in unit.ops for name in op.operands}
        self.applied = applied(phase.graph, node, tables)
        self.later = {id(op) for found in self.applied.values() for op in found}

    def unit(self, made: Mapping[int, Function], unit: Unit, depth: int) -> list[str]:
        if id(unit) in made:
            return _called(made[id(unit)], depth)
        return [] if unit.computed else self.statements(unit, depth)

    def microbatches(
        self, made: Mapping[int, Function], found: Sequence[Unit], turns: Sequence[str]
    ) -> list[str]:
        """A step whose blocks run for one microbatch after the other."""
        step = blocks(self.graph, found)
        lines = self._block(made, step.before, 1)
        if step.among:
            lines += wrapped(f"{INDENT}# ", turns)
            lines.append(f"{INDENT}for block in node.microbatches():")
        held = Kept(self.names, step.among)
        for i, block in enumerate(step.among):
            head = "if" if i == 0 else "elif"
            lines.append(f"{INDENT * 2}{head} block == {literal(block.name)}:")
            inner = held.taken(i, 3) + self._block(made, block, 3) + held.kept(i, 3)
            lines += inner or [f"{INDENT * 3}pass  # what is made is what was there"]
            if block.repeated and (assigned := _assigned(inner)):
                lines += forget(assigned, 3)  # no part holds on to the one before
        return lines + self._block(made, step.after, 1)

    def _block(
        self, made: Mapping[int, Function], block: Block, depth: int
    ) -> list[str]:
        lines = []
        if block.totals:
            values = [self.names.of(op.name) for op in block.totals]
            named = [literal(self.names.of(op.operands[0])) for op in block.totals]
            targets = [f"({values[0]},)"] if len(values) == 1 else values
            lines += call(targets, "node.totals", named, depth)
        for unit in block.units:
            lines += self.unit(made, unit, depth)
        return lines

    def _over(self, unit: Unit, depth: int) -> list[str]:
        """What goes from microbatches to the whole step, and back."""
        kind = unit.ops[0].kind
        if kind in TOGETHER.values():
            verb = kind.removesuffix("_microbatches").removesuffix("_microbatch")
            taken = [self.names.of(op.operands[0]) for op in unit.ops]
            arguments = [f"{name}={name}" for name in dict.fromkeys(taken)]
            return call([], f"node.{verb}", arguments, depth)
        (op,) = unit.ops
        verb = "split" if kind == "split_microbatches" else "first"
        operands = [self.names.of(op.operands[0])]
        return call([self.names.of(op.name)], f"node.{verb}", operands, depth)

    def statements(self, unit: Unit, depth: int) -> list[str]:
        op = unit.ops[0]
        if op.kind in COPIES:
            return self._copy(op, depth)
        if op.kind in OVER:
            return self._over(unit, depth)
        match op.kind:
            case "read":
                return self._read(unit.ops, depth)
            case "parameter":
                return [x for p in unit.ops for x in self._parameter(p, depth)]
            case "assemble":
                return self._assemble(op, depth)
            case "listen_and_serv":
                return self._receive(op, depth)
            case "send_and_recv":
                return self._trigger(op, depth)
            case "send":
                return self._send(op, depth)
            case "record":
                return self._record(unit.ops, depth)
            case "cut":
                return self._cut(op, depth)
            case "store":
                if is_update(self.graph.producers[op.operands[1]].kind):
                    return []  # the update has stored it
        return self._update(op, depth)

    def _read(self, reads: Sequence[Op], depth: int) -> list[str]:
        targets = [self.names.of(op.name) for op in reads]
        return call(targets, "node.read", [literal(op.name) for op in reads], depth)

    def _parameter(self, op: Op, depth: int) -> list[str]:
        table = self.table_of[op.name]
        if table.name in self.opened:
            return []
        self.opened.add(table.name)
        blocks = [block.name for block in table.blocks]
        targets = [self.names.of(b) if b in self.used else "_" for b in blocks]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        return call(targets, "node.values", [literal(table.name)], depth)

    def _assemble(self, op: Op, depth: int) -> list[str]:
        kind = op.result.type
        assert isinstance(kind, TensorType)
        arguments = [self.names.of(name) for name in op.operands]
        arguments.append(f"shape={literal(kind.shape)}")
        return call([self.names.of(op.name)], "node.assemble", arguments, depth)

    def _copy(self, op: Op, depth: int) -> list[str]:
        pairs = zip(op.operands, op.results, strict=True)
        taken = [(name, value.name) for name, value in pairs if value.name in self.used]
        arguments = [self.names.of(name) for name, _ in taken]
        targets = [self.names.of(name) for _, name in taken]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        if op.kind != "memcpy_d2h":
            arguments.append(f"to={literal(self.graph.devices(op))}")
        elif self._is_computed_with(op):
            arguments.append("wait=True")
        if "rows" in op.attrs:
            split = {value.name for value in op.results[: op.attrs["rows"]]}
            rows = sum(name in split for _, name in taken)
            arguments += [f"rows={rows}"] * (rows > 0)
        return call(targets, f"node.{op.kind}", arguments, depth)

    def _is_computed_with(self, op: Op) -> bool:
        """Whether a function of this node takes what is copied."""
        users = (u for value in op.results for u in self.graph.uses[value.name])
        return any(is_computed(u) and self.node in self.graph.nodes(u) for u in users)

    def _receive(self, op: Op, depth: int) -> list[str]:
        if id(op) in self.later:
            return []
        edge, origin = op.attrs["edge"], op.attrs["from"]
        targets = [self.names.of(value.name) for value in op.results]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        note = f"{INDENT * depth}# edge {edge}: from {origin}"
        how = _how(self.graph, self.graph.sends[edge], op)
        note += "".join(f", {each}" for each in how)
        return [note, *call(targets, "node.receive", [str(edge)], depth)]

    def _send(self, op: Op, depth: int) -> list[str]:
        edge, target = op.attrs["edge"], op.attrs["to"]
        parts = [f"edge {edge}: to {target}", *map(self._part, op.operands)]
        note = wrapped(f"{INDENT * depth}# ", [part for part in parts if part])
        values = [self.names.of(self._sent_from(name)) for name in op.operands]
        return [*note, *call([], "node.send", [str(edge), *values], depth)]

    def _trigger(self, op: Op, depth: int) -> list[str]:
        edge, back = op.attrs["edge"], op.attrs["back"]
        note = f"# edge {edge}: to {op.attrs['to']}, edge {back}: back from there"
        how = _how(self.graph, self.graph.sends[back], op)
        targets = [self.names.of(value.name) for value in op.results]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        values = [self.names.of(self._sent_from(name)) for name in op.operands]
        arguments = [str(edge), *values]
        arguments.append(f"back={back}")
        return [
            f"{INDENT * depth}{', '.join([note, *how])}",
            *call(targets, "node.send_and_recv", arguments, depth),
        ]

    def _part(self, name: str) -> str:
        """Which elements are sent of a value that is cut, with rows one after the other."""
        made = self.graph.producers[name]
        if made.kind != "cut":
            return ""
        whole = self.names.of(made.operands[0])
        return f"{whole}[{made.attrs['start']}:{made.attrs['stop']}]"

    def _sent_from(self, name: str) -> str:
        """The value that is given to `send`, which cuts by the plan."""
        made = self.graph.producers[name]
        return made.operands[0] if made.kind == "cut" else name

    def _cut(self, op: Op, depth: int) -> list[str]:
        users = self.graph.uses.get(op.name, ())
        if all(u.kind in _SENDS or self.node not in self.graph.nodes(u) for u in users):
            return []
        arguments = [self.names.of(op.operands[0])]
        arguments += [literal(op.attrs["start"]), literal(op.attrs["stop"])]
        return call([self.names.of(op.name)], "node.cut", arguments, depth)

    def _record(self, records: Sequence[Op], depth: int) -> list[str]:
        pairs = [(op.attrs["metric"], self.names.of(op.operands[0])) for op in records]
        if all(metric.isidentifier() for metric, _ in pairs):
            arguments = [f"{metric}={name}" for metric, name in pairs]
        else:
            inner = ", ".join(f"{literal(metric)}: {name}" for metric, name in pairs)
            arguments = [f"**{{{inner}}}"]
        return call([], "node.record", arguments, depth)

    def _update(self, op: Op, depth: int) -> list[str]:
        """One call for all blocks of a table, where the last of them stands."""
        table = self.table_of[op.operands[0]]
        found = self.gathered.setdefault((table.name, op.kind), {})
        found[op.operands[0]] = op
        if len(found) < len(table.blocks):
            return []
        if is_update(op.kind) and table.name in self.applied:
            return self._apply(table, depth)
        inorder = [found[block.name] for block in table.blocks]
        taken = [
            [self.names.of(name) for name in each.operands[1:]] for each in inorder
        ]
        arguments = [literal(table.name)]
        if op.kind == "store":
            return call([], "node.store", [*arguments, *(x for (x,) in taken)], depth)
        if self._directed(op):
            ratios = [ratio for _, ratio in taken]
            return call([], "node.update_by", [*arguments, *ratios], depth)
        arguments += [gradient for gradient, *_ in taken]
        scales = [scale for _, *scaled in taken for scale in scaled]
        if len(set(scales)) == 1:
            arguments.append(f"scale={scales[0]}")
        elif scales:
            arguments.append(f"scale=({', '.join(scales)})")
        if is_update(op.kind):
            return call([], "node.update", arguments, depth)
        targets = [self.names.of(each.name) for each in inorder]
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        return call(targets, "node.direct", arguments, depth)

    def _apply(self, table: Table, depth: int) -> list[str]:
        lines = []
        for listen in self.applied[table.name]:
            edge, origin = listen.attrs["edge"], listen.attrs["from"]
            several = len(self.graph.nodes(self.graph.sends[edge])) > 1
            how = "summed in their order and applied" if several else "applied"
            lines.append(
                f"{INDENT * depth}# edge {edge}: from {origin}, {how} as it comes"
            )
        edges = [str(listen.attrs["edge"]) for listen in self.applied[table.name]]
        return [*lines, *call([], "node.apply", [literal(table.name), *edges], depth)]

    def _directed(self, op: Op) -> bool:
        """Whether the update is the second half of a rule in two."""
        return is_update(op.kind) and optimizers.find(op.kind).direction


_SENDS = frozenset({"send", "send_and_recv"})


def _how(graph: Graph, send: Op, listen: Op) -> list[str]:
    """How what came is put together, where it is not simply taken."""
    if len(graph.nodes(send)) == 1:
        return []
    layouts = {graph.values[name].layout for name in send.operands}
    found = {"P": "sums in their order", "S": "rows put together"}
    return [text for layout, text in found.items() if layout in layouts]
