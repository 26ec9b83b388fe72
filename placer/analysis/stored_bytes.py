"""How many bytes parameters take where they are stored and updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placer.config import optimizers
from placer.graph.graph import Graph, Op
from placer.graph.kinds import is_update


def update_of(graph: Graph, parameter: str) -> Op | None:
    """The op that makes the parameter's new value, if it is trained."""
    users = graph.uses.get(parameter, ())
    return next((op for op in users if is_update(op.kind)), None)


def stored_bytes(graph: Graph) -> dict[str, int]:
    """Of each parameter: bytes of its values and of what its optimizer keeps of each."""
    recipes = {op.attrs["group"]: op.attrs for op in graph.of_kind("optimizer")}
    slots = {
        group: len(optimizers.slots(given["rule"], _hyper(given)))
        for group, given in recipes.items()
    }
    found: dict[str, int] = {}
    for op in graph.of_kind("parameter"):
        update = update_of(graph, op.name)
        kept = 0 if update is None else slots[update.attrs["group"]]
        found[op.name] = (1 + kept) * graph.tensor(op.name).nbytes(1)
    return found


def _hyper(given: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters among the attributes of an optimizer."""
    declared = optimizers.find(given["rule"]).hyper
    return {name: given[name] for name in declared if name in given}
