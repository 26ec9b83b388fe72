"""Writes the comments of messages and updates in programs."""

from __future__ import annotations

from placer.compiler.emit.roles import describe
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import ROW_ESTIMATE, ROW_SHARE
from placer.place import Place
from placer.place.layouts import Layout
from placer.place.node_kinds import SERVER
from placer.plan.settings.training.schedules import (
    LinearScaling,
    Rate,
    Schedule,
    Warmup,
)
from placer.plan.settings.training.update_modes import Geo, GradientMode, Mode


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


def sent_delta(graph: Graph, op: Op, table: str) -> str:
    """Return the comment of a `push_delta` from a table."""
    assert op.exchange is not None, op
    mode, senders = graph.modes[op.attrs["group"]], len(graph.nodes(op))
    delta = "values at the last exchange - values now"
    return op.exchange.sent.format(
        delta=_divided(delta, mode, senders), table=table, **op.attrs
    )


def applied_delta(graph: Graph, update: Op, delta: str) -> str:
    """Return the comment of an update by the change of a worker, or of all workers."""
    mode = graph.modes[update.attrs["group"]]
    if mode is not None and mode.in_rounds:
        is_sgd = update.kind == "sgd"
        return f"subtracts {delta}" if is_sgd else f"takes {delta} as the gradient"
    push = graph.producers[update.operands[1]]
    senders = len(graph.nodes(graph.sends[push.attrs["edge"]]))
    return f"subtracts {delta}, {_divided('old - new values', mode, senders)} of one worker"


def _divided(delta: str, mode: Mode | None, senders: int) -> str:
    """Return the text of a delta. Some modes divide it by the number of senders."""
    is_mean = isinstance(mode, Geo) and mode.scale == "mean" and not mode.in_rounds
    return f"({delta}) / {senders}" if is_mean and senders > 1 else f"({delta})"


def received(graph: Graph, send: Op) -> str:
    """Return the comment of a receive, such as "rows concatenated"."""
    senders = len(graph.nodes(send))
    if send.exchange is not None:
        if send.exchange.receive == "pull":
            return _pulled(graph.modes[send.attrs["group"]])
        return send.exchange.received.format(of=senders, **send.attrs)
    if senders == 1 or is_paired(graph, send):
        return ""
    sources = {source for source, _ in layouts_of(graph, send)}
    notes = []
    if "P" in sources:
        order = "around the ring" if send.attrs.get("ring", False) else "in node order"
        notes.append(f"adds {_added(send, senders)} {order}")
    if any(target == "F" for _, target in layouts_of(graph, send)):
        notes.append("for this node's range")
    if "S" in sources:
        notes.append("rows concatenated")
    if "F" in sources:
        notes.append("ranges joined")
    return ", ".join(notes)


def _added(send: Op, count: int) -> str:
    """Return the values that a receive adds: "all workers' values"."""
    kind = short_place(send.place).partition("/")[0]
    kind = "server" if kind == SERVER else kind
    if kind.isidentifier():
        return f"all {kind}s' values"
    return f"the values of {count} nodes"


def _pulled(mode: Mode | None) -> str:
    """Return the comment of a `pull`: the age of the parameters."""
    assert isinstance(mode, GradientMode), mode
    newest = "the newest received (each push requests newer ones)"
    if mode.waits_for_own:
        return "the newest, from the answer to this node's last push; waits for it"
    if mode.bound is None:
        return f"{newest}; waits only if none are here"
    behind = "the last step" if mode.bound == 1 else f"the last {mode.bound} steps"
    return f"{newest}; waits if they lack more than {behind} of any worker"


def merged(graph: Graph, send: Op, table: str) -> str:
    """Return the comment of a `merge` of a server's parameters into a table."""
    mode = graph.modes[send.attrs["group"]]
    if mode is not None and mode.in_rounds:
        return (
            "after an exchange: waits for the server's parameters, and replaces"
            f' "{table}" by them'
        )
    return (
        f'adds the changes of other workers to "{table}" if the server\'s answer is here;'
        " does not wait"
    )


def served(graph: Graph, op: Op) -> str:
    """Return the comment of a message in `serve`: "the gradients of one worker"."""
    assert op.exchange is not None, op
    template, end = op.exchange.answer, "to"
    if op.structure.receives:
        template, end = op.exchange.message, "from"
    place = short_place(op.attrs[end])
    mode = graph.modes[op.attrs["group"]] if "group" in op.attrs else None
    if op.exchange.moves == "differences" and mode is not None and mode.in_rounds:
        return f"once all {place}s have sent their deltas"
    return template.format(place=place)


def of_share(op: Op, share: str) -> str:
    """Return the comment of an op on a node's part of the gradients."""
    if share == "1.0":
        return ""
    rows = f"this node has {'the fraction ' if share == 'share' else ''}{share} of the rows"
    if op.kind == ROW_ESTIMATE:
        return f"{rows}: divides by it, to estimate the gradient of the whole batch"
    if op.kind == ROW_SHARE:
        return f"{rows}: multiplies by it"
    limits = {
        "global_norm": "the joint norm of these gradients",
        "norm": "the norm of each gradient",
        "value": "each element",
    }
    limit = next(name for name in limits if op.attrs.get(name) is not None)
    part = " * share" if share == "share" else share.removeprefix("1")
    return f"{rows}: limits {limits[limit]} to {op.attrs[limit]}{part}"


def updated_by(rule: str, rate: Rate | None) -> str:
    """Return the comment of an update: "adam, learning rate 0.001"."""
    if rate is None:
        return rule
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
