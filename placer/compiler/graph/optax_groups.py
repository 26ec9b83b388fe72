"""Finds the parameters that an optax optimizer needs as a whole, on one node."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.plan.settings.training.optimizers import OPTAX
from placer.plan.settings.training.transformations import Transformation


def optax_optimizers(graph: Graph) -> list[Op]:
    """Return the optimizers of a graph whose rule is an optax optimizer."""
    return [op for op in graph.of_kind("optimizer") if op.attrs["rule"] == OPTAX]


def rule_text(optimizer: Op) -> str:
    """Return the rule of an optimizer for texts: `adam`, `optax optimizers:make`."""
    rule, fn = optimizer.attrs["rule"], optimizer.attrs.get("fn")
    return f"{rule} {fn}" if fn else str(rule)


def transformation_of(graph: Graph, update: Op) -> Transformation | None:
    """Return the optax optimizer of an update; None for other rules."""
    attrs = graph.optimizers[update.attrs["group"]].attrs
    transformation: Transformation | None = attrs.get("transformation")
    return transformation


def reason_for_whole(graph: Graph, update: Op) -> str:
    """Return why the parameter of an update is not cut into blocks; empty if it may be."""
    transformation = transformation_of(graph, update)
    if transformation is None:
        return ""
    parameter, fn = update.operands[0], transformation.fn
    for names in transformation.together:
        if parameter in names:
            return f"not cut for {fn}: its update depends on other parameters"
    reason = transformation.whole.get(parameter)
    return f"not cut for {fn}: {reason}" if reason else ""
