"""The memory of parameters and slots on the nodes that store and update them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.structural_ops import is_update
from placer.plan.settings.training.optimizers import (
    RULES,
    Rule,
    hyperparameters,
    read_rule,
)


def find_update(graph: Graph, parameter: str) -> Op | None:
    """Return the op that computes the parameter's new value; None if it is not
    trained.
    """
    users = graph.uses.get(parameter, ())
    return next((op for op in users if is_update(op.kind)), None)


def stored_bytes(graph: Graph) -> dict[str, int]:
    """Return the bytes of each parameter and its optimizer slots, by name."""
    slot_counts = {
        group: len(rule_of(op.attrs).first_slots)
        for group, op in graph.optimizers.items()
    }
    sizes: dict[str, int] = {}
    for op in graph.parameters:
        update = find_update(graph, op.name)
        slots = 0 if update is None else slot_counts[update.attrs["group"]]
        sizes[op.name] = (1 + slots) * graph.tensor_type(op.name).nbytes(1)
    return sizes


def rule_of(attrs: Mapping[str, Any]) -> Rule:
    """Return the rule of an optimizer, with hyperparameters from its attributes."""
    declared = hyperparameters(RULES[attrs["rule"]])
    return read_rule(attrs["rule"], {k: attrs[k] for k in declared if k in attrs})
