"""Comments of programs: what a message carries and where it goes, how a table is
updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.build.plan import Table
from placer.emit.roles import describe
from placer.graph.graph import Graph, Op
from placer.place import Place


def sent(graph: Graph, op: Op) -> str:
    """Of a send: "activations to worker:1"."""
    return f"{describe(graph, op.operands)} to {at(op.attrs['to'])}"


def received(graph: Graph, send: Op, op: Op) -> str:
    """Of a receive: "gradients from worker, summed in order"."""
    note = f"{describe(graph, send.operands)} from {at(send.place)}"
    if len(graph.nodes(send)) > 1:
        layouts = {graph.values[name].layout for name in send.operands}
        how = {"P": "summed in node order", "S": "rows concatenated"}
        note += "".join(
            f", {text}" for layout, text in how.items() if layout in layouts
        )
    return note


def update(table: Table) -> str:
    """Of an update: "adam, learning rate 0.001", "adam, cosine learning rate"."""
    rate = table.learning_rate
    if isinstance(rate, dict):
        return f"{table.rule}, {_schedule(rate)} learning rate"
    return f"{table.rule}, learning rate {rate:g}"


def at(place: Place | None) -> str:
    """A place without what goes without saying: `worker:1`, `ps`."""
    text = str(place).removeprefix("/node:")
    return text.removesuffix("/cpu")


def _schedule(rate: Mapping[str, Any]) -> str:
    ((name, given),) = rate.items()
    then = given.get("then") if isinstance(given, dict) else None
    return f"{name} and {_schedule(then)}" if isinstance(then, dict) else name
