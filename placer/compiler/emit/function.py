"""Emits the computation of one node between two messages as a jitted function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from placer.compiler.emit.code import (
    Call,
    Expression,
    Line,
    add_comment,
    bracketed,
    listed,
    literal,
)
from placer.compiler.emit.computed import OpWriter
from placer.compiler.emit.hook import Hook
from placer.compiler.emit.names import STATIC_ARGUMENTS
from placer.compiler.emit.outputs import group_outputs
from placer.compiler.emit.roles import spec_op
from placer.compiler.emit.scope import Scope
from placer.compiler.graph.graph import Graph
from placer.compiler.graph.structural_ops import CLIP_PART, ROW_ESTIMATE
from placer.compiler.schedule.units import Unit

_WHY_KEPT = (
    "the results then also wait for unused arguments: updates in place rely on it"
)
_USES_ALL = frozenset({"sum_of_squares", "clip_scale", "clip_value", "trust_ratio"})
"""The kinds of ops with results that depend on every operand."""


class Statement(NamedTuple):
    """A statement of a function; `numbers` are the static arguments that it uses."""

    call: Call
    numbers: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.call.lines(1))


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a program.

    Attributes:
        parameters: the class of each parameter; empty for arrays.
        statements: the statements before the `return`.
        results: the variables that the function returns.
        options: arguments of `jax.jit` besides the static arguments: `keep_unused`.
        is_jitted: whether the function is jitted; otherwise jitted functions call it.
        segment: the segment of its ops in the graph; None for a function that jitted
            functions share.
    """

    name: str
    parameters: Mapping[str, str]
    statements: Sequence[Statement]
    results: Sequence[str]
    options: Sequence[str] = ()
    is_jitted: bool = True
    segment: int | None = None

    @property
    def numbers(self) -> list[str]:

        used = frozenset().union(*(each.numbers for each in self.statements))
        return [number for number in STATIC_ARGUMENTS if number in used]

    @property
    def jit_options(self) -> list[str]:

        if not self.is_jitted or not (numbers := self.numbers):
            return [*self.options]
        names = literal(numbers if len(numbers) > 1 else numbers[0])
        return [f"static_argnames={names}", *self.options]

    def call(self, prefix: str, targets: Sequence[str]) -> Call:
        """Return the statement that calls the function.

        Args:
            prefix: the text before the values of static arguments, such as `node.`.
            targets: the variables that the results are assigned to.
        """
        arguments = [Expression(variable, variable) for variable in self.parameters]
        numbers = [f"{number}={prefix}{number}" for number in self.numbers]
        return Call(self.name, [*arguments, *numbers], targets)

    def lines(self) -> list[Line]:

        annotated = [f"{p}: {c}" if c else p for p, c in self.parameters.items()]
        annotated += ["*", *self.numbers] if self.numbers else []
        head = []
        if options := self.jit_options:
            head = [f"@functools.partial(jax.jit, {', '.join(options)})"]
            if self.options:
                head = add_comment(head, _WHY_KEPT)
        elif self.is_jitted:
            head = ["@jax.jit"]
        head += bracketed(f"def {self.name}(", annotated, "):", 0)
        calls = [each.call for each in self.statements]
        last = calls[-1]
        returned = []
        if (
            [*last.targets] == [*self.results]
            and len(self.results) == 1
            and not last.is_tuple
        ):
            calls[-1] = replace(last, targets=(), is_returned=True)
        elif self.results:
            returned = listed("return", self.results, 1)
        body = [line for each in calls for line in each.lines(1)]
        return [
            *map(Line, head),
            *body,
            *(Line(text, (self.name,)) for text in returned),
        ]


def emit_function(hook: Hook, unit: Unit, name: str) -> Function | None:
    """Return a unit as a jitted function, or None if its results are its inputs.

    Binds the outputs of the unit in the scope of the hook. Numbers of rows are static
    arguments unless every batch is full.

    In training, `keep_unused` passes inputs of other segments even if XLA does not need
    them. The function then ends after these segments, as updates in place require. A
    function that surely needs all its inputs does without it.
    """
    graph, scope = hook.graph, hook.scope
    saved, bundles = group_outputs(hook, unit)
    inputs = [scope[value].variable for value in unit.inputs]
    parameters = [variable for variable in dict.fromkeys(inputs) if variable]
    for variable, values in saved.items():
        for value in values:
            field = f"{variable}.{scope.text(value)}"
            scope.bind(value, Expression(field, variable))
    writer = OpWriter(hook, unit)
    for variable, (bundle, members) in bundles.items():
        writer.list_gradients(variable, bundle, members)
    statements = []
    for position, op in enumerate(unit.ops):
        _keep_variables(hook, unit, position)
        writer.numbers.clear()
        if (call := writer.statement(op)) is not None:
            call = replace(call, about=(name, spec_op(graph, op)))
            statements.append(Statement(call, frozenset(writer.numbers)))
    bundled = {v for _, members in bundles.values() for v in members.values()}
    unbundled = [scope[value] for value in unit.outputs if value not in bundled]
    used = [v for v in saved if any(each.variable == v for each in unbundled)]
    alone = [e.text for e in unbundled if e.variable not in ("", *parameters, *used)]
    results = [*dict.fromkeys(alone), *used, *bundles]
    if not results:
        return None
    created = [Call("ops.Saved", (), [variable], about=(name,)) for variable in used]
    made = [scope.construct(b, members, v) for v, (b, members) in bundles.items()]
    made = [replace(call, about=(name,)) for call in made]
    classes = {variable: bundle.name for variable, (bundle, _) in scope.bundles.items()}
    is_kept = not hook.lowered.has_batches and is_awaited(graph, unit.inputs)
    is_kept = is_kept and not _uses_all(scope, unit, parameters)
    return Function(
        name,
        {parameter: classes.get(parameter, "") for parameter in parameters},
        [*map(Statement, created), *statements, *map(Statement, made)],
        results,
        ["keep_unused=True"] if is_kept else [],
        segment=unit.ops[0].attrs["segment"],
    )


def _uses_all(scope: Scope, unit: Unit, parameters: Iterable[str]) -> bool:
    """Whether the function surely needs every array of its arguments."""
    if any(op.kind not in _USES_ALL for op in unit.ops):
        return False
    used = {name for op in unit.ops for name in op.operands}
    computed = {value.name for op in unit.ops for value in op.results}
    held = (scope.bundles[p][1].values() for p in parameters if p in scope.bundles)
    return computed <= used | {*unit.outputs} and used >= {*chain(*held)}


def _keep_variables(hook: Hook, unit: Unit, position: int) -> None:
    """Assign clipped or estimated gradients to their operands' variables, if unused later."""
    op = unit.ops[position]
    if op.kind not in (CLIP_PART, ROW_ESTIMATE):
        return
    later = {name for each in unit.ops[position + 1 :] for name in each.operands}
    local = {value.name for each in unit.ops[:position] for value in each.results}
    for before, after in zip(op.operands, op.results, strict=True):
        expression = hook.scope[before]
        is_variable = expression.text == expression.variable
        if is_variable and before in local - later - {*unit.outputs}:
            hook.scope.bind(after.name, expression)


def is_awaited(graph: Graph, names: Iterable[str]) -> bool:
    """Whether a jitted function of any node computes one of these values."""
    for op in dict.fromkeys(map(graph.producers.__getitem__, names)):
        operands: Iterable[str] = ()
        if op.received_edge is not None:
            operands = graph.sends[op.received_edge].operands
        elif op.structure.update is None:
            operands = op.operands
        # Another node computes the results of a request.
        is_request = op.sent_edge is not None
        if op.is_computed or is_request or is_awaited(graph, operands):
            return True
    return False
