"""The `choices` of a plan: every place that placer chose and every op that it inserted,
each with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from placer.analysis.servers import is_on_any_server
from placer.build.plan import Choice
from placer.graph.graph import MICROBATCH_REDUCTIONS, MICROBATCH_SCATTERS, Graph, Op
from placer.graph.kinds import (
    COPIES,
    is_computed,
    is_conversion,
    is_optimizer_part,
    is_update,
)
from placer.graph.model import Model
from placer.place import SERVER, Place


def explain_choices(model: Model, step: Graph) -> tuple[Choice, ...]:
    """Return what the compiler chose or inserted for a step, in program order."""
    return tuple(_choices(model, step))


def _choices(model: Model, step: Graph) -> Iterator[Choice]:
    written = model.graph.producers
    if model.train.remainder == "drop":
        yield Choice(
            what="the short tail of a training epoch",
            why="left out: data.train.remainder is drop, unless the spec sets keep",
        )
    for name in model.narrowed_inputs:
        yield Choice(
            what=f"input {name} as {model.inputs[name]}",
            why="64-bit integers need precision: float64; the reader checks the range",
        )
    if model.emulate:
        yield Choice(
            what="accelerators",
            why="each is emulated by a CPU device: the spec has emulate",
        )
    if any("rows" in op.attrs for op in step.of_kind(*COPIES)):
        yield Choice(
            what="a short batch that the devices of a node cannot share evenly",
            why="each device computes the whole batch: only even parts can be split",
        )
    if step.microbatches > 1:
        yield Choice(
            what=f"{step.microbatches} microbatches of a step",
            why=f"in the order of {model.schedule}: see schedule.txt",
        )
    if model.eval is not None:
        rows = f"{model.eval.batch} rows, remainder {model.eval.remainder}"
        yield Choice(what="batches of an evaluation", why=rows)
    yield from _idle(step)
    unplaced = {
        op.attrs["group"] for op in model.graph.of_kind("optimizer") if op.place is None
    }
    for op in step.ops:
        if is_update(op.kind) and op.attrs["group"] in unplaced:
            why = _why_update(op, step)
            yield Choice(what=f"{op.name} ({op.kind}) at {op.place}", why=why)
        reason = _why(op, written.get(op.name), model, step)
        if reason:
            yield Choice(what=f"{op.name} ({op.kind}) at {op.place}", why=reason)


def _why(op: Op, origin: Op | None, model: Model, step: Graph) -> str | None:
    if op.kind == "parameter":
        return _why_parameter(op, model, step)
    if op.kind == "send":
        names = ", ".join(op.operands)
        return (
            f"inserted: {names} is needed at {op.attrs['to']} (edge {op.attrs['edge']})"
        )
    if op.kind == "send_and_recv":
        names = ", ".join(op.operands)
        edges = f"edges {op.attrs['edge']} and {op.attrs['back']}"
        return f"inserted: the ops at {op.attrs['to']} use {names} ({edges})"
    if op.kind in COPIES:
        return f"inserted: {', '.join(op.operands)} used on {step.devices(op)}"
    if op.kind in MICROBATCH_REDUCTIONS.values():
        return f"inserted: combines '{op.operands[0]}' of all microbatches"
    if op.kind in MICROBATCH_SCATTERS.values():
        return f"inserted: gives each microbatch its part of '{op.operands[0]}'"
    if is_conversion(op.kind):
        return f"inserted: converts '{op.operands[0]}' to layout {op.result.layout}"
    if op.kind == "assemble":
        return "inserted: joins the blocks of the parameter"
    if origin is None or is_update(op.kind) or op.is_gradient:
        return None
    if op.kind == "read":
        return "each node reads the inputs that it uses: inputs are not sent"
    if origin.place is None and origin.kind == op.kind:
        backward = next(m.place for m in model.graph.of_kind("minimize"))
        users = step.uses.get(f"{op.name}.res", ())
        if backward is not None and any(user.is_gradient for user in users):
            return f"it has no place: with its gradient, which is at {backward}"
        default = Place(step.cluster.default.name)
        return f"it has no place: with its first placed operand, else on {default}"
    if origin.place != op.place and origin.kind == op.kind:
        if is_on_any_server(origin):
            return f"specified as {origin.place}: {_why_server(op.attrs['server'])}"
        return f"specified as {origin.place}, and completed"
    return None


def _idle(step: Graph) -> Iterator[Choice]:
    """Servers without blocks and ops."""
    nodes = step.cluster.all_nodes()
    servers = [node for node in nodes if node.startswith(f"{SERVER}:")]
    idle = [node for node in servers if not step.ops_on(node)]
    if idle:
        more = f" and {len(idle) - 3:,} more" if len(idle) > 3 else ""
        yield Choice(
            what=f"{', '.join(idle[:3])}{more} of {len(servers):,} servers",
            why="idle, without parameter blocks and ops; a smaller slicing.min_block "
            "makes more blocks",
        )


def _why_server(loads: Mapping[str, Sequence[int]]) -> str:
    """Why a server was chosen, from the loads that the pass recorded."""
    stored, moved, flops = (f"{each:,}" for each in loads["brings"])
    before = ", ".join(
        f"{each:,} {what}"
        for each, what in zip(loads["had"], _LOADS, strict=True)
        if each
    )
    return (
        "the server with the least load after it. The op, with the ops that it shares "
        f"values with, stores {stored} bytes of parameters and slots, and in a step "
        f"moves {moved} bytes and computes {flops} FLOPs; the server had "
        f"{before or 'nothing'} before"
    )


_LOADS = ("bytes stored", "bytes moved", "FLOPs")


_ON_ONE_SERVER = "unsliced, on the server whose ops alone use it"


def _has_local_users(parameter: Op, step: Graph) -> bool:
    """Whether only ops of one server use the parameter, which is on that server."""
    users = filter(is_computed, step.uses.get(parameter.name, ()))
    nodes = {step.nodes(op) for op in users if not is_optimizer_part(op.kind)}
    assert parameter.place is not None
    on_server = parameter.place.node == SERVER
    return on_server and nodes == {step.nodes(parameter)}


def _why_update(op: Op, step: Graph) -> str:
    """Why the update of an optimizer without a place is where it is."""
    assert op.place is not None
    if _has_local_users(step.producers[op.operands[0]], step):
        return f"it has no place: with its parameter, {_ON_ONE_SERVER}"
    if op.place.node == SERVER:
        return "it has no place: on the servers, which share parameters by size"
    return "it has no place, and there is no server: with its parameter's first op"


def _why_parameter(op: Op, model: Model, step: Graph) -> str:
    if _has_local_users(op, step):
        return _ON_ONE_SERVER
    for user in step.uses.get(op.name, ()):
        if is_update(user.kind):
            return f"a parameter is where its optimizer ({user.kind}) is"
    used = any(is_computed(user) for user in model.graph.uses.get(op.name, ()))
    where = "with the first op that uses it" if used else "no op uses it"
    if "group" in op.attrs:
        return f"not trained, since the loss does not depend on it: {where}"
    return f"not trained: {where}"
