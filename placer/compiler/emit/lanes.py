"""Checks that the readers of a plan can divide the lanes of a stream."""

from __future__ import annotations

from math import lcm

from placer.compiler.graph.model import Model
from placer.errors import GraphError, SpecError
from placer.plan.plan import Plan
from placer.plan.settings.data.lanes import find_lane_mistake, readers_hint
from placer.plan.settings.data.sources import POSITION


def check_lanes(plan: Plan, model: Model) -> None:
    """Raise SpecError unless each reader has whole lanes of each batch or microbatch, and each node
    that computes for an asynchronous worker reads rows."""
    stream = plan.train.stream
    if stream is None or stream.lanes is None:
        return
    reads = {
        node.name: [read for read in node.step.reads if read.input != POSITION]
        for node in plan.nodes
    }
    parts = {read.shard.num_parts for each in reads.values() for read in each}
    mistake = find_lane_mistake(
        stream.lanes, plan.train.batch, lcm(*parts), plan.settings.train.microbatches
    )
    if mistake is not None:
        key = ".".join(("train", *map(str, mistake.path)))
        span = model.data_spans.get(key) or model.data_spans.get("train")
        raise SpecError(mistake.message, span=span, hint=mistake.hint)
    for name, own in reads.items():
        worker = plan.worker_of(name)
        if worker is not None and not own and not plan.is_synchronous:
            raise SpecError(
                f"{name} computes for {worker}, which trains asynchronously, but reads no rows:"
                " it would wait for rows after the end of a lane",
                span=model.data_spans.get("train.stream"),
                hint=f"compute the loss on {name}, or use 'update: sync' for all optimizers",
            )


def explain_lanes(error: GraphError, model: Model) -> None:
    """Add the possible numbers of readers to the error of a batch that cannot be split evenly."""
    stream, batch = model.train.stream, model.train.batch
    if stream is not None and stream.lanes is not None and batch % stream.lanes == 0:
        error.hint = readers_hint(stream.lanes, model.settings.train.microbatches)
