"""The memory of parameters and slots on the nodes that store and update them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_update
from placer.place.types import ITEM_BYTES
from placer.plan.settings.training.optimizers import (
    OPTAX,
    RULES,
    Rule,
    hyperparameters,
    read_rule,
)
from placer.plan.settings.training.transformations import Transformation


def find_update(graph: Graph, parameter: str) -> Op | None:
    """Return the op that computes the parameter's new value; None if it is not
    trained.
    """
    users = graph.uses.get(parameter, ())
    return next((op for op in users if is_update(op.kind)), None)


def stored_bytes(graph: Graph) -> dict[str, int]:
    """Return the bytes of each parameter and its optimizer slots, by name."""
    optimizers = graph.optimizers
    slot_counts = {
        group: len(rule_of(op.attrs).first_slots)
        for group, op in optimizers.items()
        if op.attrs["rule"] != OPTAX
    }
    sizes: dict[str, int] = {}
    for op in graph.parameters:
        update = find_update(graph, op.name)
        group = None if update is None else update.attrs["group"]
        sizes[op.name] = graph.tensor_type(op.name).nbytes(1)
        if group in slot_counts:
            sizes[op.name] *= 1 + slot_counts[group]
        elif group is not None:
            transformation = optimizers[group].attrs["transformation"]
            whole, numel = (
                op.attrs.get("whole", op.name),
                graph.tensor_type(op.name).numel(),
            )
            sizes[op.name] += state_bytes(transformation, whole, numel)
    return sizes


def state_bytes(
    transformation: Transformation, parameter: str, numel: int | None = None
) -> int:
    """Return the bytes of the state that an optax optimizer keeps for a parameter.

    Args:
        transformation: the optimizer.
        parameter: the name of the parameter.
        numel: the number of elements of a block of the parameter; by default all.
    """
    return sum(
        (numel if leaf.kind == "slot" and numel is not None else prod(leaf.shape))
        * ITEM_BYTES[leaf.dtype]
        for leaf in transformation.leaves_of(parameter)
    )


def rule_of(attrs: Mapping[str, Any]) -> Rule:
    """Return the rule of an optimizer, with hyperparameters from its attributes."""
    declared = hyperparameters(RULES[attrs["rule"]])
    return read_rule(attrs["rule"], {k: attrs[k] for k in declared if k in attrs})
