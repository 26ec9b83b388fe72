"""Emits the update of a table as one call of the node."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from placer.compiler.emit import notes
from placer.compiler.emit.code import Argument, Call, Expression, literal
from placer.compiler.emit.hook import Hook
from placer.compiler.graph.graph import Op
from placer.compiler.graph.optax_groups import rule_text
from placer.compiler.graph.structural_ops import is_update
from placer.plan.plan import Table
from placer.plan.settings.training import optimizers


def emit_update(hook: Hook, op: Op) -> list[Call]:
    """Return the statement that updates or stores a whole table.

    It stands at the op of the last block; the ops of the other blocks emit nothing.
    """
    ops = hook.updates.get(op)
    if ops is None:
        return []
    table = hook.tables[op.operands[0]]
    if op.kind == "store":
        if is_update(hook.graph.producers[op.operands[1]].kind):
            return []  # updates also store
        return _call(hook, table, ops, "store", "new")
    if not is_update(op.kind):
        return _direction(hook, table, ops)
    optimizer = hook.graph.optimizers[op.attrs["group"]]
    note = notes.updated_by(rule_text(optimizer), table.learning_rate)
    pushed = hook.graph.producers[op.operands[1]].exchange
    if pushed is not None and pushed.moves == "differences":
        delta = hook.scope[op.operands[1]].variable
        note += f": {notes.applied_delta(hook.graph, op, delta)}"
    if table.name in hook.streamed:
        return [_streamed(hook, table, note)]
    if optimizers.is_two_phase(op.kind):
        return _call(
            hook, table, ops, "apply_directions", "ratios", operand=2, note=note
        )
    return _call(hook, table, ops, "update", "g", note=note)


def _call(
    hook: Hook,
    table: Table,
    ops: Sequence[Op],
    verb: str,
    proposal: str,
    *,
    operand: int = 1,
    note: str = "",
) -> list[Call]:
    """Return a call with one operand of each op as a bundle, then the scales."""
    bundle = hook.bundles.of_table[table.name]
    operands = [op.operands[operand] for op in ops]
    proposal += bundle.number
    variable, made = hook.bundle_variable(bundle, operands, proposal)
    arguments: list[Argument] = [literal(table.name), Expression(variable, variable)]
    scales = [hook.scope[name] for op in ops for name in op.operands[operand + 1 :]]
    if len({*scales}) == 1:
        arguments.append(scales[0].after("scale="))
    elif scales:
        arguments.append(Expression("scale=", items=tuple(scales)))
    if hook.is_of_message and verb in ("update", "apply_directions"):
        arguments.append("message=message")
    return [*made, Call(f"node.{verb}", arguments, note=note)]


def _direction(hook: Hook, table: Table, ops: Sequence[Op]) -> list[Call]:
    """Return the first phase of an optimizer with two phases, such as `lamb`."""
    note = f"{table.rule}: the update direction"
    *made, call = _call(hook, table, ops, "compute_directions", "g", note=note)
    bundle = hook.bundles.of_table[table.name]
    variable = hook.scope.new_variable(f"direction{bundle.number}")
    directions = [op.name for op in ops]
    hook.scope.hold(
        variable, bundle, dict(zip(bundle.members, directions, strict=True))
    )
    return [*made, replace(call, targets=[variable])]


def _streamed(hook: Hook, table: Table, note: str) -> Call:
    listens = hook.streamed[table.name]
    if hook.is_of_message:
        message = Expression("message", "message")
        return Call("node.update_from", [literal(table.name), message], note=note)
    edges = [hook.edge(listen) for listen in listens]
    sends = [hook.graph.sends[listen.attrs["edge"]] for listen in listens]
    received = dict.fromkeys(notes.received(hook.graph, send) for send in sends)
    how = ", ".join(["receives the gradients in chunks", *filter(None, received)])
    note = f"{how}, then {note}"
    return Call("node.update_from_edges", [literal(table.name), *edges], note=note)
