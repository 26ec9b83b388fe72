"""Comments in programs: what a message contains and where it goes, how a table is
updated."""

from __future__ import annotations

from placer.compiler.emit.roles import describe
from placer.compiler.graph.graph import Graph, Op
from placer.place import Place
from placer.plan.plan import Table
from placer.plan.settings.training.schedules import (
    LinearScaling,
    Rate,
    Schedule,
    Warmup,
)


def sent(graph: Graph, op: Op) -> str:
    """Return the comment of a send: "activations to worker:1"."""
    note = f"{describe(graph, op.operands)} to {short_place(op.attrs['to'])}"
    return f"bucket {op.attrs['bucket']} of {note}" if "bucket" in op.attrs else note


def received(graph: Graph, send: Op) -> str:
    """Return the comment of the receive that belongs to a send: "gradients from worker,
    summed in node order"."""
    values = describe(graph, send.operands)
    note = f"{values} from {short_place(send.place)}"
    if send.exchange is not None and (template := send.exchange.received):
        return template.format(values=values, of=len(graph.nodes(send)), **send.attrs)
    if send.exchange is not None and send.exchange.is_by_key:
        return note
    if len(graph.nodes(send)) > 1:
        layouts = {graph.values[name].layout for name in send.operands}
        if "P" in layouts:
            note += ", summed in node order"
        if "S" in layouts:
            note += ", rows concatenated"
        if "F" in layouts:
            note += ", ranges joined"
    return note


def pushed(op: Op) -> str:
    """Return the comment of a message without lockstep: "gradients of one worker"."""
    assert op.exchange is not None, op
    return op.exchange.message.format(place=short_place(op.attrs["from"]))


def answered(op: Op) -> str:
    """Return the comment of an answer to a message: "parameters to worker"."""
    assert op.exchange is not None, op
    return op.exchange.answer.format(place=short_place(op.attrs["to"]))


def updated(table: Table) -> str:
    """Return the comment of an update: "adam, learning rate 0.001", "adam, cosine
    learning rate"."""
    return updated_by(str(table.rule), table.learning_rate)


def updated_by(rule: str, rate: Rate) -> str:
    """Return the comment of an update by a rule at a learning rate."""
    if isinstance(rate, Schedule):
        return f"{rule}, {_schedule(rate)} learning rate"
    return f"{rule}, learning rate {rate:g}"


def short_place(place: Place | None) -> str:
    """Return a place without its parts that are the same everywhere: `worker:1`, `ps`."""
    return str(place).removeprefix("/node:").removesuffix("/cpu")


def _schedule(rate: Schedule) -> str:
    match rate.form:
        case Warmup(then=Schedule() as then) | LinearScaling(then=Schedule() as then):
            return f"{rate.name} and {_schedule(then)}"
    return rate.name
