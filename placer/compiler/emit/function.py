"""A segment of one node as a jitted function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
from placer.compiler.graph.graph import Graph
from placer.compiler.schedule.units import Unit


@dataclass(frozen=True, slots=True)
class Function:
    """A jitted function: its definition, the statement that calls it, and whether it is
    jitted with options."""

    lines: Sequence[Line]
    call: Call
    has_options: bool


def emit_function(hook: Hook, unit: Unit, name: str) -> Function | None:
    """Return a unit as a function of its inputs; None if all its outputs are inputs.

    The scope then has the expressions of the outputs. If batches may be short, the function
    has static arguments: `count`, the `rows` of a microbatch, the node's `share` of rows.

    In training, `keep_unused` passes inputs of other segments even if XLA does not need
    them. The function then ends after these segments, as updates in place require.
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
    for op in unit.ops:
        if (statement := writer.statement(op)) is not None:
            statements.append(replace(statement, about=(name, spec_op(graph, op))))
    bundled = {v for _, members in bundles.values() for v in members.values()}
    unbundled = [scope[value] for value in unit.outputs if value not in bundled]
    used = [v for v in saved if any(each.variable == v for each in unbundled)]
    alone = [e.text for e in unbundled if e.variable not in ("", *parameters, *used)]
    results = [*dict.fromkeys(alone), *used, *bundles]
    if not results:
        return None
    created = [Call("ops.Saved", (), [variable], about=(name,)) for variable in used]
    for variable, (bundle, members) in bundles.items():
        made = scope.construct(bundle, members, variable)
        statements.append(replace(made, about=(name,)))
    returned = [Line(text, (name,)) for text in listed("return", results, 1)]
    last = statements[-1] if statements else None
    if last and [*last.targets] == results[:1] == results and not last.is_tuple:
        statements[-1] = replace(last, targets=(), is_returned=True)
        returned = []
    body = [line for each in [*created, *statements] for line in each.lines(1)]
    static = [number for number in STATIC_ARGUMENTS if number in writer.numbers]
    options = []
    if static:
        names = literal(static if len(static) > 1 else static[0])
        options.append(f"static_argnames={names}")
    is_waiting = not hook.lowered.has_batches and is_awaited(graph, unit.inputs)
    if is_waiting:
        options.append("keep_unused=True")
    classes = {variable: bundle.name for variable, (bundle, _) in scope.bundles.items()}
    annotated = [f"{p}: {classes[p]}" if p in classes else p for p in parameters]
    annotated += ["*", *static] if static else []
    partial = f"@functools.partial(jax.jit, {', '.join(options)})"
    head = [partial if options else "@jax.jit"]
    if is_waiting:
        head = add_comment(head, "waits for all arguments")
    head += bracketed(f"def {name}(", annotated, "):", 0)
    arguments = [Expression(variable, variable) for variable in parameters]
    call = Call(name, [*arguments, *(f"{n}=node.{n}" for n in static)], results)
    return Function([*map(Line, head), *body, *returned], call, bool(options))


def is_awaited(graph: Graph, names: Iterable[str]) -> bool:
    """Whether some segment computes one of these values, here or on another node."""
    for op in dict.fromkeys(map(graph.producers.__getitem__, names)):
        operands: Iterable[str] = ()
        if op.received_edge is not None:
            operands = graph.sends[op.received_edge].operands
        elif op.structure.update is None:
            operands = op.operands
        # The results of a request are computed by the node that replies.
        is_request = op.sent_edge is not None
        if op.is_computed or is_request or is_awaited(graph, operands):
            return True
    return False
