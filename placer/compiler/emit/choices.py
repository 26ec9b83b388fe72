"""Lists the choices of the compiler, with reasons: chosen places and inserted ops."""

from __future__ import annotations

from collections.abc import Iterator

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.model import Model
from placer.compiler.graph.structural_ops import is_conversion
from placer.compiler.schedule.node_classes import node_tuples
from placer.place import SERVER
from placer.plan.plan import Choice
from placer.system.listed import list_names

CONVERSION_REASON = "inserted: converts '{operands}' to layout {layout}"
"""The reason for a conversion; a template of the op's attributes."""


def explain_choices(model: Model, step: Graph) -> tuple[Choice, ...]:
    """Return the choices of the compiler for a step, in program order."""
    return tuple(_choices(model, step))


def _choices(model: Model, step: Graph) -> Iterator[Choice]:
    if model.train.remainder == "drop":
        yield Choice(
            what="the short tail of a training epoch",
            why="left out, because data.train.remainder is drop",
        )
    for name in model.narrowed_inputs:
        yield Choice(
            what=f"input {name} as {model.inputs[name]}",
            why="64-bit integers need precision: float64; the reader checks the range",
        )
    if model.settings.emulate:
        yield Choice(
            what="accelerators",
            why="CPU devices emulate them, because the spec sets emulate",
        )
    if any(op.structure.copies and "rows" in op.attrs for op in step):
        yield Choice(
            what="a short batch that the devices of a node cannot share evenly",
            why="each device computes the whole batch, because parts must be equal",
        )
    if step.microbatches > 1:
        yield Choice(
            what=f"{step.microbatches} microbatches of a step",
            why=f"in the order of {model.settings.train.schedule}: see schedule.txt",
        )
    buckets = {op.attrs["bucket"] for op in step.ops if "bucket" in op.attrs}
    if buckets:
        yield Choice(
            what=f"{len(buckets)} buckets of gradients",
            why="a bucket is sent while the next one is computed, because the spec sets"
            " bucket_cap_mb",
        )
    if model.eval is not None:
        rows = f"{model.eval.batch} rows, remainder {model.eval.remainder}"
        yield Choice(what="batches of an evaluation", why=rows)
    yield from _parts(step)
    yield from _idle(step)
    for op in step.ops:
        if why := op.why or _why_inserted(step, op):
            yield Choice(what=f"{op.name} ({op.kind}) at {op.place}", why=why)


def _why_inserted(step: Graph, op: Op) -> str:
    """Return the reason for an inserted op; empty for other ops."""
    template = op.structure.why
    if is_conversion(op.kind):
        template = CONVERSION_REASON
    return template.format(
        operands=", ".join(op.operands),
        devices=step.devices(op),
        layout=op.results[0].layout if op.results else None,
        **op.attrs,
    )


def parts_of_functions(step: Graph) -> dict[str, int]:
    """Return the number of parts of each traced function that computes parts of a batch."""
    return {
        op.name.partition(".")[0]: op.attrs["parts"]
        for op in step.ops
        if op.attrs.get("parts")
    }


def _parts(step: Graph) -> Iterator[Choice]:
    for name, parts in parts_of_functions(step).items():
        yield Choice(
            what=f"{parts} parts of each batch of '{name}'",
            why="the function computes each part, because the spec sets batch: replica",
        )


def _idle(step: Graph) -> Iterator[Choice]:
    """Yield a choice about the servers without blocks and ops."""
    nodes = step.cluster.all_nodes()
    servers = [node for node in nodes if node.kind == SERVER]
    busy = {node for nodes in node_tuples(step) for node in nodes}
    idle = [node for node in servers if node not in busy]
    if idle:
        yield Choice(
            what=f"{list_names(idle, 3)} of {len(servers):,} servers",
            why="idle, without parameter blocks and ops; a smaller slicing.min_block "
            "makes more blocks",
        )
