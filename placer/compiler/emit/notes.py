"""Comments in programs: what a message contains and where it goes, how a table is
updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.compiler.emit.roles import describe
from placer.compiler.graph.graph import Graph, Op
from placer.place import Place
from placer.plan.plan import BY_KEY, Table


def sent(graph: Graph, op: Op) -> str:
    """Return the comment of a send: "activations to worker:1"."""
    note = f"{describe(graph, op.operands)} to {short_place(op.attrs['to'])}"
    return f"bucket {op.attrs['bucket']} of {note}" if "bucket" in op.attrs else note


def received(graph: Graph, send: Op) -> str:
    """Return the comment of the receive that belongs to a send: "gradients from worker,
    summed in node order"."""
    note = f"{describe(graph, send.operands)} from {short_place(send.place)}"
    if (first := send.attrs.get("first")) is not None:
        note = f"{describe(graph, send.operands)} of the first {first} of"
        return f"{note} {len(graph.nodes(send))} workers, summed in node order"
    if send.attrs.get("exchange") in BY_KEY:
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
    place = short_place(op.attrs["from"])
    match op.attrs["exchange"]:
        case "push_all":
            return f"gradients of each {place}, added up"
        case "pull_sum":
            return f"sums of gradients from {place}"
        case "push_delta":
            return f"difference of one {place}"
        case "ask_rows":
            return f"keys that one {place} looks up"
        case "push_rows":
            return f"gradients of rows of one {place}"
    return f"gradients of one {place}"


def answered(op: Op) -> str:
    """Return the comment of an answer to a message: "parameters to worker"."""
    place = short_place(op.attrs["to"])
    if op.attrs["exchange"] == "pull_sum":
        return f"the sum since it has asked last, to one {place}"
    return f"parameters to {place}"


def updated(table: Table) -> str:
    """Return the comment of an update: "adam, learning rate 0.001", "adam, cosine
    learning rate"."""
    return updated_by(str(table.rule), table.learning_rate)


def updated_by(rule: str, rate: Any) -> str:
    """Return the comment of an update by a rule at a learning rate."""
    if isinstance(rate, dict):
        return f"{rule}, {_schedule(rate)} learning rate"
    return f"{rule}, learning rate {rate:g}"


def short_place(place: Place | None) -> str:
    """Return a place without its parts that are the same everywhere: `worker:1`, `ps`."""
    return str(place).removeprefix("/node:").removesuffix("/cpu")


def _schedule(rate: Mapping[str, Any]) -> str:
    ((name, arguments),) = rate.items()
    then = arguments.get("then") if isinstance(arguments, dict) else None
    return f"{name} and {_schedule(then)}" if isinstance(then, dict) else name
