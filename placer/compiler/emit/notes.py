"""Writes the comments of messages and updates in programs."""

from __future__ import annotations

from placer.compiler.emit.roles import describe
from placer.compiler.graph.graph import Graph, Op
from placer.place import Place
from placer.place.layouts import Layout
from placer.plan.plan import Table
from placer.plan.settings.training.schedules import (
    LinearScaling,
    Rate,
    Schedule,
    Warmup,
)


def sent(graph: Graph, op: Op) -> str:
    """Return the comment of a send, such as "each node gets its rows"."""
    receivers = len(graph.nodes(graph.receives[op.attrs["edge"]]))
    if op.exchange is not None:
        if op.exchange.is_by_key and receivers == 1:
            return ""
        return op.exchange.sent.format(place=short_place(op.attrs["to"]), **op.attrs)
    layouts = {*layouts_of(graph, op)}
    if any(target == "F" for _, target in layouts):
        values = describe(graph, op.operands)
        return f"each node gets its range of the flattened {values}"
    if any(source == "F" for source, _ in layouts):
        return "this node's range"
    is_split = receivers > 1 and any(target == "S" for _, target in layouts)
    return "each node gets its rows" if is_split and not is_paired(graph, op) else ""


def received(graph: Graph, send: Op) -> str:
    """Return the comment of a receive, such as "summed in node order"."""
    senders = len(graph.nodes(send))
    if send.exchange is not None:
        return send.exchange.received.format(of=senders, **send.attrs)
    if senders == 1 or is_paired(graph, send):
        return ""
    sources = {source for source, _ in layouts_of(graph, send)}
    notes = []
    if any(target == "F" for _, target in layouts_of(graph, send)):
        notes.append("this node's range")
    if "P" in sources:
        ring = send.attrs.get("ring", False)
        notes.append("summed around the ring" if ring else "summed in node order")
    if "S" in sources:
        notes.append("rows concatenated")
    if "F" in sources:
        notes.append("ranges joined")
    return ", ".join(notes)


def merged(graph: Graph, send: Op) -> str:
    """Return the comment of a `merge` of a server's parameters into a worker's own."""
    mode = graph.modes[send.attrs["group"]]
    if mode is not None and mode.in_rounds:
        return "after an exchange: waits for new parameters, and takes them"
    return "adds the changes of other workers, if received"


def served(op: Op) -> str:
    """Return the comment of a message in `serve`: "of one worker"."""
    assert op.exchange is not None, op
    template, end = op.exchange.answer, "to"
    if op.structure.receives:
        template, end = op.exchange.message, "from"
    return template.format(place=short_place(op.attrs[end]))


def updated(table: Table) -> str:
    """Return the comment of an update: "adam, learning rate 0.001"."""
    return updated_by(str(table.rule), table.learning_rate)


def updated_by(rule: str, rate: Rate) -> str:
    """Return the comment of an update: "adam, cosine learning rate"."""
    if isinstance(rate, Schedule):
        return f"{rule}, {_schedule(rate)} learning rate"
    return f"{rule}, learning rate {rate:g}"


def short_place(place: Place | None) -> str:
    """Return a place without slashes: `worker:1`, `ps`."""
    return str(place).removeprefix("/node:").removesuffix("/cpu")


def _schedule(rate: Schedule) -> str:
    match rate.form:
        case Warmup(then=Schedule() as then) | LinearScaling(then=Schedule() as then):
            return f"{rate.name} and {_schedule(then)}"
    return rate.name


def layouts_of(graph: Graph, send: Op) -> list[tuple[Layout, Layout]]:
    """Return the layouts of each value of a message at the senders and the receivers."""
    received = graph.receives[send.attrs["edge"]].results
    return [
        (graph.layout(name), graph.layout(result.name))
        for name, result in zip(send.operands, received, strict=True)
    ]


def is_paired(graph: Graph, send: Op) -> bool:
    """Whether each message goes between a worker and its heter node."""
    return send.attrs["edge"] in graph.paired_edges
