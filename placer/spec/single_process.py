"""Turns a model into one that a single process computes, without places."""

from __future__ import annotations

from dataclasses import replace

from placer.graph.model import Model
from placer.place import Cluster, NodeKind


def to_single_process(model: Model) -> Model:
    """Return a model for one worker with one device of the default kind.

    The result of any placement can be compared with that of this model.
    """
    (device, _), *_ = model.graph.cluster.default.devices
    graph = replace(
        model.graph,
        cluster=Cluster((NodeKind("worker", 1, ((device, 1),)),)),
        microbatches=1,
        ops=tuple(op.with_place(None) for op in model.graph.ops),
    )
    return replace(model, graph=graph, memory={})
