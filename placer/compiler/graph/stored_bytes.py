"""The bytes of memory that parameters need where they are stored and updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_update
from placer.plan.settings.training import optimizers


def find_update(graph: Graph, parameter: str) -> Op | None:
    """Return the op that computes the parameter's new value; None if it is frozen."""
    users = graph.uses.get(parameter, ())
    return next((op for op in users if is_update(op.kind)), None)


def stored_bytes(graph: Graph) -> dict[str, int]:
    """Return the bytes of each parameter and of the slots of its optimizer, by name."""
    slot_counts = {
        group: len(optimizers.slots(op.attrs["rule"], hyperparameters(op.attrs)))
        for group, op in graph.optimizers.items()
    }
    sizes: dict[str, int] = {}
    for op in graph.parameters:
        update = find_update(graph, op.name)
        slots = 0 if update is None else slot_counts[update.attrs["group"]]
        sizes[op.name] = (1 + slots) * graph.tensor_type(op.name).nbytes(1)
    return sizes


def hyperparameters(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters among the attributes of an optimizer."""
    declared = optimizers.RULES[attrs["rule"]].hyper
    return {name: attrs[name] for name in declared if name in attrs}
