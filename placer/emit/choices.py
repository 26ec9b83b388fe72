"""Why things are where they are: every place that was chosen, every op put in (R3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from placer.analysis.servers import is_open
from placer.build.plan import Choice
from placer.graph.graph import APART, TOGETHER, Graph, Op
from placer.graph.kinds import (
    COPIES,
    is_computed,
    is_conversion,
    is_optimizers,
    is_update,
)
from placer.graph.model import Model
from placer.place import SERVER, Place


def choices(model: Model, step: Graph) -> tuple[Choice, ...]:
    """What the compiler chose or inserted, in program order."""
    return tuple(_choices(model, step))


def _choices(model: Model, step: Graph) -> Iterator[Choice]:
    written = model.graph.producers
    if model.train.remainder == "drop":
        yield Choice(
            what="the short tail of a training epoch",
            why="left out: data.train.remainder is drop unless the spec says keep",
        )
    for name in model.narrowed:
        yield Choice(
            what=f"input {name} as {model.inputs[name]}",
            why="64-bit integers need precision: float64; the reader checks their range",
        )
    if model.emulate:
        yield Choice(
            what="devices that are no CPU",
            why="each is a CPU device of its own: the spec says emulate",
        )
    if any("rows" in op.attrs for op in step.of_kind(*COPIES)):
        yield Choice(
            what="a short batch that the devices of a node cannot share evenly",
            why="each of them computes all of it: arrays are split evenly or not at all",
        )
    if step.microbatches > 1:
        yield Choice(
            what=f"{step.microbatches} microbatches of a step",
            why=f"in the order of {model.schedule}: see schedule.txt",
        )
    if model.eval is not None:
        rows = f"{model.eval.batch} rows, remainder {model.eval.remainder}"
        yield Choice(what="an evaluation's batches", why=rows)
    yield from _idle(step)
    unplaced = {
        op.attrs["group"] for op in model.graph.of_kind("optimizer") if op.place is None
    }
    for op in step.ops:
        if is_update(op.kind) and op.attrs["group"] in unplaced:
            near = _unplaced(op, step)
            yield Choice(what=f"{op.name} ({op.kind}) at {op.place}", why=near)
        why = _why(op, written.get(op.name), model, step)
        if why:
            yield Choice(what=f"{op.name} ({op.kind}) at {op.place}", why=why)


def _why(op: Op, origin: Op | None, model: Model, step: Graph) -> str | None:
    if op.kind == "parameter":
        return _parameter(op, model, step)
    if op.kind == "send":
        names = ", ".join(op.operands)
        return (
            f"put in: {names} is needed at {op.attrs['to']} (edge {op.attrs['edge']})"
        )
    if op.kind == "send_and_recv":
        names = ", ".join(op.operands)
        edges = f"edges {op.attrs['edge']} and {op.attrs['back']}"
        return f"put in: the block at {op.attrs['to']} takes {names} ({edges})"
    if op.kind in COPIES:
        return f"put in: {', '.join(op.operands)} used on {step.devices(op)}"
    if op.kind in TOGETHER.values():
        return f"put in: makes one value of '{op.operands[0]}' of all microbatches"
    if op.kind in APART.values():
        return f"put in: gives each microbatch its own of '{op.operands[0]}'"
    if is_conversion(op.kind):
        return f"put in: turns the layout of '{op.operands[0]}' into {op.result.layout}"
    if op.kind == "assemble":
        return "put in: puts the parameter together from its blocks"
    if origin is None or is_update(op.kind) or op.is_gradient:
        return None
    if op.kind == "read":
        return "read where it is used: inputs are not sent"
    if origin.place is None and origin.kind == op.kind:
        backward = next(m.place for m in model.graph.of_kind("minimize"))
        users = step.uses.get(f"{op.name}.res", ())
        if backward is not None and any(user.is_gradient for user in users):
            return f"nothing was written: with its gradient, which is at {backward}"
        default = Place(step.cluster.default.name)
        return f"nothing was written: with its first placed input, else on {default}"
    if origin.place != op.place and origin.kind == op.kind:
        if is_open(origin):
            return f"written as {origin.place}: {_server(op.attrs['server'])}"
        return f"written as {origin.place}; what it leaves open was completed"
    return None


def _idle(step: Graph) -> Iterator[Choice]:
    """Servers that nothing is for."""
    nodes = step.cluster.all_nodes()
    servers = [node for node in nodes if node.startswith(f"{SERVER}:")]
    idle = [node for node in servers if not step.on(node)]
    if idle:
        more = f" and {len(idle) - 3:,} more" if len(idle) > 3 else ""
        yield Choice(
            what=f"{', '.join(idle[:3])}{more} of {len(servers):,} servers",
            why="nothing is there: no block of a parameter and no op; a smaller "
            "slicing.min_block makes more blocks",
        )


def _server(loads: Mapping[str, Sequence[int]]) -> str:
    """Why a server was chosen, by what the pass that did has recorded."""
    stored, moved, flops = (f"{each:,}" for each in loads["brings"])
    had = ", ".join(
        f"{each:,} {what}"
        for each, what in zip(loads["had"], _LOADS, strict=True)
        if each
    )
    return (
        "of the servers, the one that is then loaded the least. The op, with those that "
        f"it shares values with, stores {stored} bytes of parameters and optimizer "
        f"state, and in a step moves {moved} bytes and computes {flops} FLOPs; the "
        f"server had {had or 'nothing'} before"
    )


_LOADS = ("bytes stored", "bytes moved", "FLOPs")


_ALONE = "it stands, whole, on the server whose ops alone use it"


def _is_alone(parameter: Op, step: Graph) -> bool:
    """Whether a parameter on a server is used by ops of that server, and by no others."""
    users = filter(is_computed, step.uses.get(parameter.name, ()))
    nodes = {step.nodes(op) for op in users if not is_optimizers(op.kind)}
    assert parameter.place is not None
    on_server = parameter.place.node == SERVER
    return on_server and nodes == {step.nodes(parameter)}


def _unplaced(op: Op, step: Graph) -> str:
    """Why an optimizer stands where it does that nobody placed."""
    assert op.place is not None
    if _is_alone(step.producers[op.operands[0]], step):
        return f"nothing was written: with its parameter, for {_ALONE}"
    if op.place.node == SERVER:
        return "nothing was written: parameters stand on the servers, by size"
    return "nothing was written, and there is no server: with its parameter's first op"


def _parameter(op: Op, model: Model, step: Graph) -> str:
    if _is_alone(op, step):
        return _ALONE
    for user in step.uses.get(op.name, ()):
        if is_update(user.kind):
            return f"a parameter stands where its optimizer ({user.kind}) does"
    used = any(is_computed(user) for user in model.graph.uses.get(op.name, ()))
    stands = "with the first op that uses it" if used else "no op uses it"
    if "group" in op.attrs:
        return f"not trained, for no way leads from it to the loss: {stands}"
    return f"not trained: {stands}"
