"""What a node does in one lowered, a statement for each unit: `step` or `evaluate`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from placer.analysis.streamed_updates import find_streamed_updates
from placer.analysis.tasks import Task, split_into_tasks
from placer.analysis.units import LoweredGraph, Unit
from placer.build.plan import Table
from placer.config import optimizers
from placer.emit import notes
from placer.emit.bundles import Bundle, Bundles, Stars, collapse
from placer.emit.code import (
    INDENT,
    add_comment,
    format_call,
    format_del,
    literal,
    wrap_words,
)
from placer.emit.function import Function, Outputs, cotangent_literal, function
from placer.emit.kept import Kept, variables_in
from placer.emit.names import Names, Scope
from placer.emit.roles import differentiated, parameter_of
from placer.emit.titles import titles
from placer.graph.graph import MICROBATCH_REDUCTIONS, Op
from placer.graph.kinds import (
    COPIES,
    MICROBATCH_CONVERSIONS,
    is_computed,
    is_update,
    is_update_direction,
)
from placer.types import TensorType


def emit_hook(
    node: str,
    lowered: LoweredGraph,
    names: Names,
    tables: Sequence[Table],
    bundles: Bundles,
    turns: Sequence[str],
) -> tuple[list[Function], list[str]]:
    """The functions that the node jits in a lowered, and the lines of what calls them."""
    writer = _Writer(lowered, node, names, tables, bundles)
    if lowered.graph.microbatches > 1:
        lines = writer.microbatches(turns)
    else:
        lines = writer.batches()
    writer.scope.close()
    return writer.functions, [_head(lowered), *(lines or _nothing(node))]


def _head(lowered: LoweredGraph) -> str:
    name = "evaluate" if lowered.evaluating else "step"
    return f"def {name}(node: runtime.Node) -> None:"


def _nothing(node: str) -> list[str]:
    nothing = "this server stores no block" if node.startswith("ps") else "no ops"
    return [f'{INDENT}"""Nothing to do: {nothing}."""']


class _Writer:
    """Writes the statements of one lowered, in order."""

    def __init__(
        self,
        lowered: LoweredGraph,
        node: str,
        names: Names,
        tables: Sequence[Table],
        bundles: Bundles,
    ) -> None:
        self.lowered, self.graph, self.node = lowered, lowered.graph, node
        self.units = lowered.units_on(node)
        self.scope = Scope(names)
        self.bundles = bundles
        self.functions: list[Function] = []
        self.variables: dict[str, tuple[Bundle, dict[str, str]]] = {}
        """The variables that hold bundles, with the value of each member."""
        self.classes: dict[str, Bundle] = {}
        self.stars: Stars = {}
        self.variable_at: dict[str, str] = {}
        """The variable of the bundle whose first value this is, or was the last to be."""
        self.bundle_with: dict[str, tuple[Bundle, dict[str, str]]] = {}
        """The bundle that a value is in."""
        self.part_of: dict[str, int] = {}
        """The part of the step in which each variable is assigned."""
        self.part = 0
        self.assigned: set[str] = set()
        self.emitted: set[int] = set()
        self.table_of = {b.name: table for table in tables for b in table.blocks}
        self.member_of = {b.gradient: b.name for t in tables for b in t.blocks}
        self.opened: set[str] = set()
        self.updates: dict[tuple[str, str], dict[str, Op]] = {}
        self.used = {n for unit in self.units for op in unit.ops for n in op.operands}
        self.users: dict[str, list[int]] = {}
        """The numbers of the units that use each value."""
        for i, unit in enumerate(self.units):
            used = [n for op in unit.ops for n in op.operands]
            for name in dict.fromkeys(unit.inputs if unit.computed else used):
                self.users.setdefault(name, []).append(i)
        self.streamed = find_streamed_updates(lowered.graph, node, tables)
        self.streams = {id(op) for ops in self.streamed.values() for op in ops}
        self.awaited = self._parameters()
        self.titles = {
            unit: names.new_name(re.sub(r"\W", "_", title))
            for unit, title in titles(self.units, lowered.evaluating).items()
        }

    # The order of the statements.

    def batches(self) -> list[str]:
        """A step, or an evaluation with its loop over batches."""
        lines: list[str] = []
        depth = 1
        looped = self.lowered.evaluating and any(not unit.once for unit in self.units)
        for unit in self.units:
            if looped and depth == 1 and not unit.once:
                lines.append(f"{INDENT}for _ in node.batches():")
                depth, self.part = 2, 1
            lines += self._unit(unit, depth)
        return lines

    def microbatches(self, turns: Sequence[str]) -> list[str]:
        """A step whose tasks run for one microbatch after the other."""
        step = split_into_tasks(self.graph, self.units)
        lines = self._task(step.before, 1)
        if step.tasks:
            lines += wrap_words(f"{INDENT}# ", turns)
            lines.append(f"{INDENT}for task in node.microbatches():")
        bodies = [self._task(task, 3) for task in step.tasks]
        repeated = [task.repeated for task in step.tasks]
        kept = Kept([b if r else [] for b, r in zip(bodies, repeated, strict=True)])
        for i, task in enumerate(step.tasks):
            head = "if" if i == 0 else "elif"
            lines.append(f"{INDENT * 2}{head} task == {literal(task.name)}:")
            body = kept.loads(i, 3) + bodies[i] + kept.saves(i, 3)
            lines += body or [f"{INDENT * 3}pass  # the results are the operands"]
            if task.repeated and (assigned := variables_in(body)[0]):
                lines += format_del(assigned, 3)  # frees the memory of this microbatch
        return lines + self._task(step.after, 1)

    def _task(self, task: Task, depth: int) -> list[str]:
        self.part += 1
        lines = self._totals(task.totals, depth) if task.totals else []
        for unit in task.units:
            lines += self._unit(unit, depth)
        return lines

    def _unit(self, unit: Unit, depth: int) -> list[str]:
        if unit.computed:
            lines = self._computed(unit, depth)
        else:
            lines = self._structural(unit, depth)
        self.assigned |= {value.name for op in unit.ops for value in op.results}
        self.emitted |= {id(op) for op in unit.ops}
        return [*lines, *self._constructed(unit, depth)]

    # Bundles.

    def _parameters(self) -> list[tuple[Bundle, dict[str, str]]]:
        """The bundles of parameters that functions take, each with the value that they
        take of each parameter."""
        values: dict[str, dict[str, str]] = {}
        several: set[str] = set()
        for unit in self.units:
            for name in unit.inputs if unit.computed else ():
                parameter = parameter_of(self.graph, name)
                bundle = self.bundles.of_member.get(parameter or "")
                if parameter is None or bundle is None:
                    continue
                of_member = values.setdefault(bundle.table, {})
                if of_member.setdefault(parameter, name) != name:
                    several.add(bundle.table)  # on several devices
        return [
            (bundle, values[table])
            for table, bundle in self.bundles.of_table.items()
            if table not in several
            and values.get(table, {}).keys() == {*bundle.members}
            and len(self._devices_of(values[table].values())) == 1
        ]

    def _devices_of(self, values: Iterable[str]) -> set[str]:
        return {self.graph.devices(self.graph.producers[name]) for name in values}

    def _constructed(self, unit: Unit, depth: int) -> list[str]:
        """The bundles whose last value this unit has assigned."""
        made = {value.name for op in unit.ops for value in op.results}
        lines: list[str] = []
        for awaited in [*self.awaited]:
            bundle, values = awaited
            if (
                made.isdisjoint(values.values())
                or not {*values.values()} <= self.assigned
            ):
                continue
            self.awaited.remove(awaited)
            if self._variable_of([values[m] for m in bundle.members]) is None:
                lines += self._new(bundle, values, "p", depth)
        return lines

    def _new(
        self, bundle: Bundle, values: Mapping[str, str], wish: str, depth: int
    ) -> list[str]:
        """A variable of this class, made of its values."""
        arguments = bundle.arguments(
            {m: self.scope.expression_of(v) for m, v in values.items()}
        )
        variable = self._bind(bundle, values, wish)
        return format_call([variable], bundle.name, arguments, depth)

    def _bind(self, bundle: Bundle, values: Mapping[str, str], wish: str) -> str:
        """A new variable for a bundle: from now on its values are fields of that."""
        variable = self.scope.new_variable(wish)
        self._rebind(variable, bundle, values)
        return variable

    def _rebind(self, variable: str, bundle: Bundle, values: Mapping[str, str]) -> None:
        self._remember(variable, bundle, dict(values))
        for member, expression in bundle.fields(variable).items():
            self.scope.bind(values[member], expression)

    def _remember(
        self, variable: str, bundle: Bundle, of_member: dict[str, str]
    ) -> None:
        self.variables[variable] = bundle, of_member
        self.classes[variable] = bundle
        self.stars |= bundle.stars(variable)
        self.variable_at[of_member[bundle.members[0]]] = variable
        whole = bundle, of_member
        self.bundle_with.update(dict.fromkeys(of_member.values(), whole))
        self.part_of[variable] = self.part

    def _variable_of(self, values: Sequence[str]) -> str | None:
        """The variable that holds just these values, in this order."""
        variable = self.variable_at.get(values[0])
        if variable is None:
            return None
        bundle, of_member = self.variables[variable]
        fields = bundle.fields(variable)
        held = [of_member[member] for member in bundle.members]
        current = all(
            self.scope.expression_of(of_member[m]) == fields[m] for m in fields
        )
        return variable if held == [*values] and current else None

    def _grouped(self, values: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Values as arguments: variables of bundles with all their values, and others
        alone."""
        out: list[tuple[str, list[str]]] = []
        i = 0
        while i < len(values):
            variable, run = self.variable_at.get(values[i]), []
            if variable is not None:
                run = [*values[i : i + len(self.variables[variable][1])]]
                variable = self._variable_of(run)
            if variable is not None:
                out.append((variable, run))
                i += len(run)
            else:
                out.append((self.scope.expression_of(values[i]), [values[i]]))
                i += 1
        return out

    def _in_order(self, values: Mapping[str, object]) -> list[str]:
        """The same values, those of a bundle beside each other and in its order."""
        out: dict[str, None] = {}
        for name in values:
            bundle, of_member = self.bundle_with.get(name, (None, {}))
            if bundle and values.keys() >= {*of_member.values()}:
                out.update(dict.fromkeys(of_member[m] for m in bundle.members))
            out.setdefault(name)
        return [*out]

    def _arguments(self, values: Sequence[str]) -> list[str]:
        return collapse([e for e, _ in self._grouped(values)], self.stars)

    def _of_table(
        self, table: Table, values: Sequence[str], wish: str, depth: int
    ) -> tuple[str, list[str]]:
        """The variable of a table's class with these values, one a block, and the lines
        that assign it if need be."""
        bundle = self.bundles.of_table[table.name]
        variable = self._variable_of(values)
        if variable is not None and self.variables[variable][0] is bundle:
            return variable, []
        of_member = dict(zip(bundle.members, values, strict=True))
        lines = self._new(bundle, of_member, wish, depth)
        return next(reversed(self.variables)), lines

    # Functions.

    def _computed(self, unit: Unit, depth: int) -> list[str]:
        made = function(
            self.graph,
            self.node,
            unit,
            self.scope,
            self.lowered,
            self.titles[id(unit)],
            self.classes,
            self.stars,
            self._outputs(unit),
        )
        if made is None:
            return []
        self.functions.append(made)
        for variable in made.results:
            self.part_of[variable] = self.part
        arguments = [*made.arguments, *(f"{each}=node.{each}" for each in made.static)]
        return format_call(made.results, made.name, arguments, depth)

    def _outputs(self, unit: Unit) -> Outputs:
        """Gradients of all parameters of a table go together, and so does what only
        later functions use, by which of them do."""
        gradients: dict[str, dict[str, str]] = {}
        twice: set[str] = set()
        for name in unit.outputs:
            parameter = self._meant_for(name)
            bundle = self.bundles.of_member.get(parameter or "")
            if parameter and bundle is not None:
                of_member = gradients.setdefault(bundle.table, {})
                if parameter in of_member:
                    twice.add(bundle.table)
                of_member[parameter] = name
        grouped: dict[str, tuple[Bundle, dict[str, str]]] = {}
        for table, of_member in gradients.items():
            bundle = self.bundles.of_table[table]
            if of_member.keys() == {*bundle.members} and table not in twice:
                stored = table.startswith(_UNTRAINED)
                variable = self.scope.new_variable("new" if stored else "g")
                grouped[variable] = bundle, of_member
                self._remember(variable, bundle, of_member)
        rest = {*unit.outputs}
        rest -= {v for _, of_member in grouped.values() for v in of_member.values()}
        saved: dict[tuple[int, ...], list[str]] = {}
        for name in unit.outputs:
            users = self._functions_using(name, unit) if name in rest else None
            if users and cotangent_literal(self.graph, name) is None:
                saved.setdefault(users, []).append(name)
        return Outputs(
            {self.scope.new_variable("s"): v for v in saved.values() if len(v) > 1},
            grouped,
        )

    def _meant_for(self, name: str) -> str | None:
        """The parameter that a value is the gradient of, or the new value of."""
        differentiable = differentiated(self.graph, name)
        if differentiable is not None:
            return parameter_of(self.graph, differentiable)
        stores = (u for u in self.graph.uses.get(name, ()) if u.kind == "store")
        return next((store.operands[0] for store in stores), None)

    def _functions_using(self, name: str, made_by: Unit) -> tuple[int, ...] | None:
        """The units with functions that use a value; None where other statements do."""
        users = [i for i in self.users.get(name, ()) if self.units[i] is not made_by]
        computed = all(self.units[i].computed for i in users)
        return tuple(users) if computed else None

    # Statements.

    def _structural(self, unit: Unit, depth: int) -> list[str]:
        op = unit.ops[0]
        if op.kind in COPIES:
            return self._copy(op, depth)
        if op.kind in MICROBATCH_CONVERSIONS:
            return self._over(unit, depth)
        match op.kind:
            case "read":
                return self._read(unit.ops, depth)
            case "parameter":
                return [line for p in unit.ops for line in self._parameter(p, depth)]
            case "assemble":
                return self._assemble(op, depth)
            case "listen_and_serv":
                return self._receive(op, depth)
            case "send_and_recv":
                return self._send_and_recv(op, depth)
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

    def _targets(self, values: Sequence[str]) -> list[str]:
        """Variables for values that a statement assigns."""
        targets = [self.scope.expression_of(name) for name in values]
        for target in targets:
            self.part_of[target] = self.part
        return [f"({targets[0]},)"] if len(targets) == 1 else targets

    def _read(self, reads: Sequence[Op], depth: int) -> list[str]:
        targets = [self.scope.expression_of(op.name) for op in reads]
        self.part_of |= dict.fromkeys(targets, self.part)
        return format_call(
            targets, "node.read", [literal(op.name) for op in reads], depth
        )

    def _parameter(self, op: Op, depth: int) -> list[str]:
        table = self.table_of[op.name]
        if table.name in self.opened:
            return []
        self.opened.add(table.name)
        bundle = self.bundles.of_table[table.name]
        blocks = {block.name: block.name for block in table.blocks}
        wish = next((w for w in _UNTRAINED if table.name.startswith(w)), "p")
        variable = self._bind(bundle, blocks, wish)
        self.assigned |= blocks.keys()
        arguments = [literal(table.name), bundle.name]
        return format_call([variable], "node.parameters", arguments, depth)

    def _assemble(self, op: Op, depth: int) -> list[str]:
        kind = op.result.type
        assert isinstance(kind, TensorType)
        arguments = [self.scope.expression_of(name) for name in op.operands]
        arguments.append(f"shape={literal(kind.shape)}")
        return format_call(
            [self.scope.expression_of(op.name)],
            "node.assemble_parameter",
            arguments,
            depth,
        )

    def _copy(self, op: Op, depth: int) -> list[str]:
        pairs = zip(op.operands, op.results, strict=True)
        copied = {name: value.name for name, value in pairs if value.name in self.used}
        groups = self._grouped(self._in_order(copied))
        targets = []
        for expression, values in groups:
            results = [copied[name] for name in values]
            bundled = expression in self.variables
            again = all(self._is_last_use(name, op) for name in values)
            again = again and self.part_of.get(expression) == self.part
            if bundled:
                bundle, of_member = self.variables[expression]
                copies = {m: copied[v] for m, v in of_member.items()}
                if again:
                    self._rebind(expression, bundle, copies)
                    targets.append(expression)
                else:
                    targets.append(self._bind(bundle, copies, expression))
            elif again and expression.isidentifier():
                self.scope.bind(results[0], expression)
                targets.append(expression)
            else:
                targets += map(self.scope.expression_of, results)
        for target in targets:
            self.part_of[target] = self.part
        arguments = [expression for expression, _ in groups]
        if op.kind != "memcpy_d2h":
            arguments.append(f"to={literal(self.graph.devices(op))}")
        elif self._is_computed_with(op):
            arguments.append("wait=True")
        if "rows" in op.attrs:
            split = {value.name for value in op.results[: op.attrs["rows"]]}
            rows = sum(name in split for name in copied.values())
            arguments += [f"rows={rows}"] * (rows > 0)
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        return format_call(targets, f"node.{op.kind}", arguments, depth)

    def _is_last_use(self, name: str, op: Op) -> bool:
        """Whether nothing that comes later on this node uses a value, under any name."""
        values = {name, *self.scope.values_of(self.scope.expression_of(name))}
        return all(
            user is op
            or id(user) in self.emitted
            or self.node not in self.graph.nodes(user)
            or (_is_of_table(user) and user.operands[0] == value)  # has its own values
            for value in values
            for user in self.graph.uses.get(value, ())
        )

    def _is_computed_with(self, op: Op) -> bool:
        """Whether a function of this node takes what is copied."""
        users = (u for value in op.results for u in self.graph.uses[value.name])
        return any(is_computed(u) and self.node in self.graph.nodes(u) for u in users)

    def _received(
        self, op: Op, depth: int, verb: str, arguments: Sequence[str]
    ) -> list[str]:
        """The results of an edge: those of a whole table as a bundle."""
        values = [value.name for value in op.results]
        bundle = self._whole(values)
        if bundle is not None:
            of_member = dict(zip(bundle.members, values, strict=True))
            wish = "p" if parameter_of(self.graph, values[0]) else "g"
            variable = self._bind(bundle, of_member, wish)
            return format_call([variable], verb, [*arguments, bundle.name], depth)
        return format_call(self._targets(values), verb, arguments, depth)

    def _whole(self, values: Sequence[str]) -> Bundle | None:
        """The bundle whose parameters, or whose gradients, are just these values."""
        members = []
        for name in values:
            member = parameter_of(self.graph, name) or self.member_of.get(name)
            members.append(member or "")
        bundle = self.bundles.of_member.get(members[0])
        return bundle if bundle and [*bundle.members] == members else None

    def _receive(self, op: Op, depth: int) -> list[str]:
        if id(op) in self.streams:
            return []
        edge = op.attrs["edge"]
        note = notes.received(self.graph, self.graph.sends[edge], op)
        return add_comment(self._received(op, depth, "node.receive", [str(edge)]), note)

    def _send(self, op: Op, depth: int) -> list[str]:
        edge = op.attrs["edge"]
        parts = filter(None, map(self._part, op.operands))
        note = ", ".join([notes.sent(self.graph, op), *parts])
        values = self._arguments([self._sent_from(name) for name in op.operands])
        return add_comment(
            format_call([], "node.send", [str(edge), *values], depth), note
        )

    def _send_and_recv(self, op: Op, depth: int) -> list[str]:
        edge, back = op.attrs["edge"], op.attrs["back"]
        reply = notes.received(self.graph, self.graph.sends[back], op)
        note = f"{notes.sent(self.graph, op)}; {reply}"
        values = self._arguments([self._sent_from(name) for name in op.operands])
        targets = self._targets([value.name for value in op.results])
        arguments = [str(edge), *values, f"back={back}"]
        return add_comment(
            format_call(targets, "node.send_and_recv", arguments, depth), note
        )

    def _part(self, name: str) -> str:
        """Which elements are sent of a value that is cut, with rows one after the other."""
        made = self.graph.producers[name]
        if made.kind != "cut":
            return ""
        whole = self.scope.expression_of(made.operands[0])
        return f"{whole}[{made.attrs['start']}:{made.attrs['stop']}]"

    def _sent_from(self, name: str) -> str:
        """The value that is given to `send`, which cuts by the plan."""
        made = self.graph.producers[name]
        return made.operands[0] if made.kind == "cut" else name

    def _cut(self, op: Op, depth: int) -> list[str]:
        users = self.graph.uses.get(op.name, ())
        if all(u.kind in _SENDS or self.node not in self.graph.nodes(u) for u in users):
            return []
        arguments = [self.scope.expression_of(op.operands[0])]
        arguments += [literal(op.attrs["start"]), literal(op.attrs["stop"])]
        return format_call(
            [self.scope.expression_of(op.name)], "node.slice_gradient", arguments, depth
        )

    def _record(self, records: Sequence[Op], depth: int) -> list[str]:
        pairs = [
            (op.attrs["metric"], self.scope.expression_of(op.operands[0]))
            for op in records
        ]
        if all(metric.isidentifier() for metric, _ in pairs):
            arguments = [f"{metric}={name}" for metric, name in pairs]
        else:
            inner = ", ".join(f"{literal(metric)}: {name}" for metric, name in pairs)
            arguments = [f"**{{{inner}}}"]
        return format_call([], "node.record", arguments, depth)

    # Microbatches.

    def _over(self, unit: Unit, depth: int) -> list[str]:
        """What goes from microbatches to the whole step, and back."""
        kind = unit.ops[0].kind
        if kind in MICROBATCH_REDUCTIONS.values():
            reduced = dict.fromkeys(op.operands[0] for op in unit.ops)
            values = self._in_order(reduced)
            arguments = [f"{self._keyword(e, v)}={e}" for e, v in self._grouped(values)]
            return format_call([], f"node.{kind}", arguments, depth)
        (op,) = unit.ops
        operands = [self.scope.expression_of(op.operands[0])]
        return format_call(
            [self.scope.expression_of(op.name)], f"node.{kind}", operands, depth
        )

    def _keyword(self, expression: str, values: Sequence[str]) -> str:
        """What a total is called: its variable, or where it is a field, as one word."""
        return expression.replace(".", "_") if len(values) == 1 else expression

    def _totals(self, totals: Sequence[Op], depth: int) -> list[str]:
        """What microbatches have made together."""
        total_of = {op.operands[0]: op.name for op in totals}
        targets, named = [], []
        for expression, values in self._grouped(self._in_order(total_of)):
            named.append(literal(self._keyword(expression, values)))
            if len(values) == 1:
                targets.append(self.scope.expression_of(total_of[values[0]]))
            else:
                bundle, of_member = self.variables[expression]
                of_total = {m: total_of[v] for m, v in of_member.items()}
                self._rebind(expression, bundle, of_total)
                targets.append(expression)
        self.assigned |= {op.name for op in totals}
        if len(targets) == 1:
            targets = [f"({targets[0]},)"]
        return format_call(targets, "node.microbatch_totals", named, depth)

    # Updates.

    def _update(self, op: Op, depth: int) -> list[str]:
        """One call for all blocks of a table, where the last of them is."""
        table = self.table_of[op.operands[0]]
        ops = self.updates.setdefault((table.name, op.kind), {})
        ops[op.operands[0]] = op
        if len(ops) < len(table.blocks):
            return []
        if is_update(op.kind) and table.name in self.streamed:
            return self._streamed(table, depth)
        in_order = [ops[block.name] for block in table.blocks]
        operands = [each.operands[1:] for each in in_order]
        name = literal(table.name)
        given = [taken[0] for taken in operands]
        if op.kind == "store":
            new, lines = self._of_table(table, given, "new", depth)
            return [*lines, *format_call([], "node.store", [name, new], depth)]
        if is_update(op.kind) and optimizers.find(op.kind).is_two_phase:
            given = [taken[1] for taken in operands]
            ratios, lines = self._of_table(table, given, "ratios", depth)
            lines += format_call([], "node.apply_directions", [name, ratios], depth)
            return add_comment(lines, notes.update(table))
        gradients, lines = self._of_table(table, given, "g", depth)
        arguments = [name, gradients]
        scales = [
            self.scope.expression_of(scale)
            for _, *scaled in operands
            for scale in scaled
        ]
        if len(set(scales)) == 1:
            arguments.append(f"scale={scales[0]}")
        elif scales:
            arguments.append(f"scale=({', '.join(scales)})")
        if is_update(op.kind):
            lines += format_call([], "node.update", arguments, depth)
            return add_comment(lines, notes.update(table))
        bundle = self.bundles.of_table[table.name]
        names = [each.name for each in in_order]
        of_member = dict(zip(bundle.members, names, strict=True))
        variable = self._bind(bundle, of_member, "direction")
        lines += format_call([variable], "node.compute_directions", arguments, depth)
        return add_comment(lines, f"{table.rule}: the update direction")

    def _streamed(self, table: Table, depth: int) -> list[str]:
        listens = self.streamed[table.name]
        edges = [str(listen.attrs["edge"]) for listen in listens]
        sources = dict.fromkeys(notes.at(listen.attrs["from"]) for listen in listens)
        note = f"{notes.update(table)}: gradients from {', '.join(sources)}, as they arrive"
        lines = format_call(
            [], "node.update_from_edges", [literal(table.name), *edges], depth
        )
        return add_comment(lines, note)


_UNTRAINED = ("state", "frozen")
"""How the names of tables start that no optimizer updates."""
_SENDS = frozenset({"send", "send_and_recv"})


def _is_of_table(op: Op) -> bool:
    """Whether the op is done by a table."""
    return op.kind == "store" or is_update(op.kind) or is_update_direction(op.kind)
