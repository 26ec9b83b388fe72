"""Emits structural ops as calls of the node: reads, messages, copies, records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from placer.compiler.emit import notes
from placer.compiler.emit.bundles import Bundle
from placer.compiler.emit.code import Argument, Call, Expression, literal
from placer.compiler.emit.hook import Hook
from placer.compiler.emit.names import is_argument_name
from placer.compiler.emit.roles import parameter_of
from placer.compiler.emit.short_names import is_sum_of_nodes
from placer.compiler.emit.sparse import (
    emit_distinct_keys,
    emit_exact_squares,
    emit_lookup,
    emit_received_rows,
    emit_rounded_sum,
    emit_row_update,
    emit_sent_rows,
)
from placer.compiler.emit.updates import emit_update
from placer.compiler.graph.declared import passed_attrs
from placer.compiler.graph.graph import Op
from placer.compiler.graph.structural_ops import KINDS
from placer.compiler.schedule.served import is_of_table


def emit_structural(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return the statements of structural ops of one kind.

    A kind without an entry in `_EMIT` becomes a call of the node's method of that name.
    """
    if is_of_table(ops[0]):
        if hook.is_sparse(ops[0]):
            return emit_row_update(hook, ops[0])
        return emit_update(hook, ops[0])
    return _EMIT.get(ops[0].kind, _call)(hook, ops)


def _call(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return a call of the node's method with the name of the op kind."""
    (op,) = ops
    arguments: list[Argument] = [hook.scope[name] for name in op.operands]
    attrs = passed_attrs(op)
    arguments += (f"{name}={literal(value)}" for name, value in attrs.items())
    targets = hook.targets(value.name for value in op.results)
    return [Call(f"node.{op.kind}", arguments, targets)]


def _read(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    names = [op.name for op in ops]
    return [Call("node.read", [*map(literal, names)], hook.targets(names))]


def _parameters(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return a call for each table that no variable holds yet."""
    statements = []
    for op in ops:
        table = hook.tables[op.name]
        bundle = hook.bundles.of_table[table.name]
        if hook.scope.is_bound(op.name):
            continue
        is_range = hook.graph.values[op.name].layout == "F"
        suffix = "_range" if is_range else ""
        variable = hook.scope.new_variable(f"{bundle.variable}{suffix}")
        blocks = {block.name: block.name for block in table.blocks}
        hook.scope.hold(variable, bundle, blocks)
        arguments = [literal(table.name), bundle.name]
        averages = table.averages and hook.name == "evaluate"
        method = "evaluation_parameters" if averages else "parameters"
        statements.append(Call(f"node.{method}", arguments, [variable]))
    return statements


def _assemble(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    (op,) = ops
    shape = f"shape={literal(hook.graph.tensor_type(op.name).shape)}"
    blocks = [hook.scope[name] for name in op.operands]
    return [Call("node.assemble_parameter", [*blocks, shape], hook.targets([op.name]))]


def _cut(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return the cut as an array; nothing if the value is only sent."""
    (op,) = ops
    users = [u for u in hook.graph.uses.get(op.name, ()) if _is_here(hook, u)]
    if all(user.sent_edge is not None for user in users):
        return []
    part, targets = _part(hook, op), hook.targets([op.name])
    return [Call(part.text, part.items, targets, attribute=".values")]


def _copy(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return a copy between devices, in the variable of the original if that is free."""
    (op,) = ops
    scope = hook.scope
    results = (value.name for value in op.results)
    copies = {
        name: result
        for name, result in zip(op.operands, results, strict=True)
        if result in hook.users
    }
    groups = scope.grouped(copies)
    targets = []
    for expression, values in groups:
        variable = expression.text
        replaced = scope.parts.get(variable) == scope.part
        replaced = replaced and all(map(hook.is_last_use, values))
        if variable in scope.bundles:
            bundle, members = scope.bundles[variable]
            target = variable if replaced else scope.new_variable(variable)
            scope.hold(target, bundle, {m: copies[v] for m, v in members.items()})
        else:
            if replaced:
                scope.bind(copies[values[0]], expression)
            target = scope.text(copies[values[0]])
        targets.append(target)
    arguments: list[Argument] = [expression for expression, _ in groups]
    if op.kind != "memcpy_d2h":
        arguments.append(f"to={literal(hook.graph.devices(op))}")
    elif any(u.is_computed and _is_here(hook, u) for u in _users(hook, op)):
        arguments.append("wait=True")
    split = {value.name for value in op.results[: op.attrs.get("rows", 0)]}
    if rows := len(split & {*copies.values()}):
        arguments.append(f"rows={rows}")
    return [Call(f"node.{op.kind}", arguments, targets, is_tuple=True)]


def _users(hook: Hook, op: Op) -> list[Op]:
    return [u for value in op.results for u in hook.graph.uses.get(value.name, ())]


def _is_here(hook: Hook, op: Op) -> bool:
    return hook.node in hook.graph.nodes(op)


# Messages.


def _send(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    (op,) = ops
    exchange = op.exchange
    if exchange is None:
        arguments: list[Argument] = [hook.edge(op), *_sent(hook, op)]
        return [Call("node.send", arguments, note=notes.sent(hook.graph, op))]
    if exchange.is_by_key:
        return emit_sent_rows(hook, op)
    if exchange.moves == "differences":
        table = _table_of_delta(hook, op.operands[0])
        note = hook.once(notes.sent_delta(hook.graph, op, table))
        method = f"node.{exchange.send}"
        return [Call(method, [hook.edge(op)], note=note, is_above=True)]
    if not hook.is_of_message:
        arguments = [hook.edge(op), *_sent(hook, op)]
        note = notes.sent(hook.graph, op)
        return [Call(f"node.{exchange.send}", arguments, note=note)]
    # `send_sum` finds the sum for the worker itself.
    values = [] if exchange.moves == "sums" else _sent(hook, op)
    message = Expression("message", "message")
    return [Call(f"node.{exchange.send_answer}", [message, *values])]


def _receive(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    (op,) = ops
    if any(op in listens for listens in hook.streamed.values()):
        return []
    exchange = op.exchange
    if exchange is not None and exchange.is_by_key:
        return emit_received_rows(hook, op)
    if exchange is not None and exchange.handling == "adds":
        message = Expression("message", "message")
        return [Call(f"node.{exchange.receive_message}", [message])]
    send = hook.graph.sends[op.attrs["edge"]]
    table_name = _merged_table(hook, op)
    if table_name is not None:
        note = hook.once(notes.merged(hook.graph, send, table_name))
        return [Call("node.merge", [hook.edge(op)], note=note, is_above=True)]
    method = f"node.{exchange.receive if exchange else 'receive'}"
    arguments: list[Argument] = [hook.edge(op)]
    note = notes.received(hook.graph, send)
    is_pull = exchange is not None and exchange.receive == "pull"
    if is_pull:
        note = hook.once(note)
    if hook.is_of_message:
        assert exchange is not None, op
        method, note = f"node.{exchange.receive_message}", ""
        update = next(
            op for unit in hook.units for op in unit.ops if op.structure.update
        )
        table = hook.tables[update.operands[0]]
        arguments = [literal(table.name), Expression("message", "message")]
    values = [value.name for value in op.results]
    members = [parameter_of(hook.graph, v) or hook.trained.get(v, "") for v in values]
    bundle = hook.bundles.of_member.get(members[0])
    if bundle is None or [*bundle.members] != members:
        _keep_variables(hook, op)
        targets = hook.targets(values)
        call = Call(method, arguments, targets, is_tuple=True, note=note)
        return [replace(call, is_above=is_pull)]
    is_parameters = parameter_of(hook.graph, values[0]) is not None
    if is_parameters:
        proposal = bundle.variable
    else:
        proposal = _received_variable(hook, op, bundle, values[0])
    variable = hook.bundle_target(bundle, proposal)
    hook.scope.hold(variable, bundle, dict(zip(members, values, strict=True)))
    call = Call(method, [*arguments, bundle.name], [variable], note=note)
    return [replace(call, is_above=is_pull)]


def _keep_variables(hook: Hook, op: Op) -> None:
    """Assign received values to the variables of the sent ones, unless used again."""
    scope, graph = hook.scope, hook.graph
    sent = graph.sends[op.attrs["edge"]].operands
    for value, before in zip(op.results, sent, strict=True):
        if graph.values[before].layout != "R" or not scope.is_bound(before):
            continue
        expression = scope[before]
        is_here = scope.parts.get(expression.text) == scope.part
        if is_here and expression.variable and hook.is_last_use(before):
            scope.bind(value.name, expression)


def _received_variable(hook: Hook, op: Op, bundle: Bundle, value: str) -> str:
    """Return the variable of received gradients, or of a worker's change."""
    if op.exchange is not None and op.exchange.moves == "differences":
        mode = hook.graph.modes[op.attrs["group"]]
        is_mean = mode is not None and mode.in_rounds
        return f"delta{bundle.number}{'_mean' if is_mean else ''}"
    if hook.graph.values[value].layout == "F":
        return f"g{bundle.number}_range"
    suffix = "_sum" if is_sum_of_nodes(hook.graph, value) else ""
    return f"g{bundle.number}{suffix}"


def _merged_table(hook: Hook, op: Op) -> str | None:
    """Return the worker's table that received values are merged into, or None."""
    users = (u for value in op.results for u in hook.graph.uses.get(value.name, ()))
    local = (user.name for user in users if user.kind == "local_parameter")
    return next((hook.tables[name].name for name in local), None)


def _table_of_delta(hook: Hook, value: str) -> str:
    """Return the worker's table whose change a sent value is."""
    op = hook.graph.producers[value]
    while op.kind != "delta":
        op = hook.graph.producers[op.operands[0]]
    parameter = hook.parameter_for(op.operands[0])
    assert parameter is not None, op
    return hook.tables[parameter].name


def _nothing(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return no statement: calls refer to a sparse table by its name."""
    del hook, ops
    return []


def _delta(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return no statement: `push_delta` computes the change when it sends it."""
    del hook, ops
    return []


def _send_and_receive(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    (op,) = ops
    arguments = [Expression(hook.edge(op)), *_sent(hook, op)]
    arguments.append(Expression(f"back={hook.edge(op, 'back')}"))
    reply = notes.received(hook.graph, hook.graph.sends[op.attrs["back"]])
    note = "; ".join(filter(None, [notes.sent(hook.graph, op), reply]))
    targets = hook.targets(value.name for value in op.results)
    return [Call("node.send_and_recv", arguments, targets, is_tuple=True, note=note)]


def _sent(hook: Hook, op: Op) -> list[Expression]:
    """Return the sent values, with `node.cut` for parts of arrays."""
    producers = [hook.graph.producers[name] for name in op.operands]
    expressions = [
        _part(hook, made) if made.kind == "cut" else hook.scope[name]
        for name, made in zip(op.operands, producers, strict=True)
    ]
    return hook.scope.collapse(expressions, whole=True)


def _part(hook: Hook, cut: Op) -> Expression:
    """Return a part of an array: `node.cut(g.h1.w, 0, 16384)`."""
    limits = [Expression(literal(cut.attrs[name])) for name in ("start", "stop")]
    return Expression("node.cut", items=(hook.scope[cut.operands[0]], *limits))


# Metrics and microbatches.


def _record(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    return _call_by_name(hook, "node.record", {op.attrs["metric"]: op for op in ops})


def _output(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    return _call_by_name(hook, "node.output", {op.attrs["output"]: op for op in ops})


def _call_by_name(hook: Hook, method: str, ops: Mapping[str, Op]) -> list[Call]:
    """Return a call with the operands of ops as keyword arguments."""
    values = {name: hook.scope[op.operands[0]] for name, op in ops.items()}
    if all(map(is_argument_name, values)):
        keywords = [value.after(f"{name}=") for name, value in values.items()]
        return [Call(method, keywords)]
    items = [value.after(f"{literal(name)}: ") for name, value in values.items()]
    return [Call(method, [Expression("**", "", tuple(items), ("{", "}"))])]


def _reduce(hook: Hook, ops: Sequence[Op]) -> list[Call]:
    """Return the call that adds the values of a microbatch to the totals of the step."""
    values = [op.operands[0] for op in ops]
    arguments = [
        expression.after(f"{hook.total_name(expression)}=")
        for expression, _ in hook.scope.grouped(values)
    ]
    return [Call(f"node.{ops[0].kind}", arguments)]


def emit_totals(hook: Hook, totals: Sequence[Op]) -> list[Call]:
    """Return the statement that assigns the totals of all microbatches."""
    scope = hook.scope
    total_of = {op.operands[0]: op.name for op in totals}
    targets, names = [], []
    for expression, values in scope.grouped(total_of):
        names.append(literal(hook.total_name(expression)))
        variable = expression.text
        if variable in scope.bundles:
            bundle, members = scope.bundles[variable]
            totals_of = {m: total_of[v] for m, v in members.items()}
            is_gradient = variable == f"g{bundle.number}"
            total = scope.new_variable(f"{variable}_total") if is_gradient else variable
            scope.hold(total, bundle, totals_of)
            targets.append(total)
        else:
            targets += hook.targets(total_of[value] for value in values)
    return [Call("node.microbatch_totals", names, targets, is_tuple=True)]


_EMIT: dict[str, Callable[[Hook, Sequence[Op]], list[Call]]] = {
    "read": _read,
    "parameter": _parameters,
    "sparse_table": _nothing,
    "distinct_keys": emit_distinct_keys,
    "distributed_lookup_table": emit_lookup,
    "exact_squares": emit_exact_squares,
    "rounded_sum": emit_rounded_sum,
    "local_parameter": _parameters,
    "delta": _delta,
    "assemble": _assemble,
    "cut": _cut,
    **{name: _copy for name, kind in KINDS.items() if kind.copies},
    "send": _send,
    "listen_and_serv": _receive,
    "send_and_recv": _send_and_receive,
    "record": _record,
    "output": _output,
    **{name: _reduce for name, kind in KINDS.items() if kind.reduces},
}
