"""Turns a model into one for a single process, without places."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from placer.compiler.graph.graph import Op
from placer.compiler.graph.model import Model
from placer.place import Cluster, NodeKind
from placer.plan.settings.training.optimizers import OF_SEVERAL_NODES
from placer.plan.settings.training.update_modes import Sync


def to_single_process(model: Model) -> Model:
    """Return the model for one worker with one device of the default kind. Results of
    any placement can be compared with the results of this model."""
    (device, _), *_ = model.graph.cluster.default.devices
    graph = replace(
        model.graph,
        cluster=Cluster((NodeKind("worker", 1, ((device, 1),)),)),
        microbatches=1,
        ops=tuple(_without_place(op) for op in model.graph.ops),
    )
    train = structs.replace(model.settings.train, microbatches=1)
    settings = structs.replace(model.settings, train=train)
    return replace(model, graph=graph, settings=settings, memory={})


def _without_place(op: Op) -> Op:
    """Return an op without its place and its settings for several nodes."""
    if op.kind == "optimizer":
        kept = {k: v for k, v in op.attrs.items() if k not in OF_SEVERAL_NODES}
        op = structs.replace(op, attrs={**kept, "update": Sync()})
    return op.with_place(None)
