"""Emits the hooks of a program, such as `step`: statements for each unit of a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from placer.compiler.emit import notes
from placer.compiler.emit.bundles import Bundles
from placer.compiler.emit.code import (
    INDENT,
    About,
    Call,
    Line,
    add_comment,
    listed,
    literal,
    wrap_comment,
)
from placer.compiler.emit.constants import Constants
from placer.compiler.emit.function import Function, emit_function
from placer.compiler.emit.hook import Hook
from placer.compiler.emit.kept_variables import assigned, keep_variables
from placer.compiler.emit.names import Names
from placer.compiler.emit.outputs import parameters_to_group
from placer.compiler.emit.roles import spec_op
from placer.compiler.emit.structural import emit_structural, emit_totals
from placer.compiler.emit.titles import name_functions
from placer.compiler.schedule.tasks import Task, split_into_tasks
from placer.compiler.schedule.units import LoweredGraph, Unit
from placer.place.node_kinds import SERVER, NodeId
from placer.plan.hooks import SERVE
from placer.plan.plan import Table


class Indented(NamedTuple):
    """A statement of a hook, with its number of indentations."""

    call: Call
    depth: int


Written = Line | Indented


def emit_hook(
    node: str,
    lowered: LoweredGraph,
    names: Names,
    tables: Sequence[Table],
    bundles: Bundles,
    constants: Constants,
    turns: Sequence[str],
) -> tuple[list[Function], list[Written]]:
    """Return the jitted functions and the lines of the hook of one graph."""
    units = lowered.units_of_hook(node)
    writer = _Writer(
        Hook(node, lowered, names, tables, bundles, units, lowered.hook, constants)
    )
    if lowered.graph.microbatches > 1:
        lines = writer.microbatches(turns)
    else:
        lines = writer.batches()
    if lowered.hook == "step" and lowered.serves_workers(node):
        note = (
            f"until `{SERVE}`, in its own thread, has applied this step of every worker"
        )
        lines += _print([Call("node.wait_for_workers", (), note=note)], 1)
    if not lines:
        nothing = _why_nothing(node, lowered, tables)
        lines = [Line(f'{INDENT}"""Nothing to do: {nothing}."""')]
    head = Line(f"def {writer.hook.name}(node: runtime.Node) -> None:")
    return writer.functions, [head, *lines]


def _why_nothing(node: str, lowered: LoweredGraph, tables: Sequence[Table]) -> str:
    """Return the reason for an empty hook, in words."""
    if lowered.hook == "step" and lowered.units_of_messages(node):
        return (
            f"during training, `{SERVE}` handles messages of workers in its own thread"
        )
    sparse = (lowered.graph.nodes(op) for op in lowered.graph.sparse_tables)
    stores = tables or any(node in nodes for nodes in sparse)
    is_empty_server = NodeId(node).kind == SERVER and not stores
    return "this server stores no parameters" if is_empty_server else "no ops"


def emit_serve(
    node: str,
    lowered: LoweredGraph,
    names: Names,
    tables: Sequence[Table],
    bundles: Bundles,
    constants: Constants,
) -> tuple[list[Function], list[Written]]:
    """Return the functions and the lines of `serve`, a loop over messages."""
    functions: list[Function] = []
    when = "received since the last step"
    if NodeId(node).kind == SERVER:
        when = "of workers, as they arrive"
    lines: list[Written] = [
        Line(text, (SERVE,))
        for text in (
            f"def {SERVE}(node: runtime.Node) -> None:",
            f"{INDENT}for message in node.messages():  # {when}",
        )
    ]
    keyword = "if"
    for edge, units in sorted(lowered.units_of_messages(node).items()):
        hook = Hook(node, lowered, names, tables, bundles, units, SERVE, constants)
        writer = _Writer(hook)
        op = next(
            op for unit in units for op in unit.ops if edge == op.attrs.get("edge")
        )
        test = f"{INDENT * 2}{keyword} message.edge == {constants.edge(edge)}:"
        lines += [
            Line(text, (SERVE,))
            for text in add_comment([test], notes.served(lowered.graph, op))
        ]
        keyword = "elif"
        for unit in units:
            lines += _print(writer.unit(unit), 3)
        functions += writer.functions
    return functions, lines


class _Writer:
    """Writes the statements of one hook."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.functions: list[Function] = []
        self._parameters = parameters_to_group(hook)
        self._titles = name_functions(hook.units, hook.names, hook.lowered.hook)

    def batches(self) -> list[Written]:
        """Return the lines of a hook: a step, or a loop over batches."""
        lines: list[Written] = []
        depth = 1
        for unit in self.hook.units:
            if self.hook.lowered.has_batches and depth == 1 and not unit.once:
                lines.append(self._line(f"{INDENT}for _ in node.batches():"))
                depth = 2
                self.hook.scope.part += 1
            lines += _print(self.unit(unit), depth)
        return lines

    def microbatches(self, turns: Sequence[str]) -> list[Written]:
        """Return the lines of a step with microbatches: a loop over tasks."""
        step = split_into_tasks(self.hook.graph, self.hook.units)
        lines = _print(self._task(step.before), 1)
        if step.tasks:
            first, *others = turns
            order = [f"The tasks in order, each with its microbatch: {first}", *others]
            lines += map(Line, wrap_comment(order, 1))
            loop = f"{INDENT}for task in node.microbatches():"
            note = "calls of node in the loop use the microbatch of the task"
            lines += map(self._line, add_comment([loop], note))
        bodies = [self._task(task) for task in step.tasks]
        tasks = [*zip(step.tasks, bodies, strict=True)]
        repeated = [body for task, body in tasks if task.repeated]
        complete = iter(keep_variables(repeated, (self.hook.name,)))
        for i, (task, body) in enumerate(tasks):
            if task.repeated:
                body = next(complete)
            keyword = "elif" if i else "if"
            test = f"{INDENT * 2}{keyword} task == {literal(task.name)}:"
            lines += [self._line(test), *_print(body, 3)]
            if not body:
                nothing = f"{INDENT * 3}pass  # the results are the operands"
                lines.append(self._line(nothing))
            variables = assigned(body) if task.repeated else []
            if variables:  # to free the memory of this microbatch
                lines += map(self._line, listed("del", variables, 3))
        return lines + _print(self._task(step.after), 1)

    def _line(self, text: str) -> Line:
        """Return a line that is about no op."""
        return Line(text, (self.hook.name,))

    def _task(self, task: Task) -> list[Call]:
        self.hook.scope.part += 1
        statements: list[Call] = []
        if task.totals:
            about = self.hook.about(task.totals)
            statements += self._complete(emit_totals(self.hook, task.totals), about)
        for unit in task.units:
            statements += self.unit(unit)
        return statements

    def unit(self, unit: Unit) -> list[Call]:
        """Return the statements of a unit, and the statement that collects parameters."""
        hook = self.hook
        hook.number += 1
        if unit.computed:
            name = self._titles[id(unit)]
            about = name, *(spec_op(hook.graph, op) for op in unit.ops)
            hook.computes(unit.outputs, about)
            function = emit_function(hook, unit, name)
            self.functions += [function] if function else []
            statements = [function.call("node.", function.results)] if function else []
        else:
            statements = emit_structural(hook, unit.ops)
            about = hook.about(unit.ops)
        for bundle, values in self._parameters.get(hook.number, ()):
            statements += hook.bundle_variable(bundle, values, bundle.variable)[1]
        return self._complete(statements, about)

    def _complete(self, statements: Iterable[Call], about: About) -> list[Call]:
        """Return the statements with the ops to name in errors."""
        complete = [replace(each, about=about) for each in statements]
        scope = self.hook.scope
        scope.parts.update((v, scope.part) for v in assigned(complete))
        return complete


def _print(statements: Iterable[Call], depth: int) -> list[Written]:
    return [Indented(statement, depth) for statement in statements]
