"""Finds optimizers whose learning rate is always 0, so that they train nothing."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.errors import PlacerError
from placer.plan.settings.training.schedules import is_always_zero, read_rate
from placer.plan.settings.training.update_modes import Geo


def find_rates_of_zero(graph: Graph) -> list[str]:
    """Return a warning, with position and hint, for each optimizer whose learning rate is
    0 in every step.

    Args:
        graph: the graph of a model, before the passes.
    """
    texts = []
    for group, op in graph.optimizers.items():
        if is_always_zero(op.attrs["learning_rate"]):
            texts.append(_warn(op, f"'{op.attrs['rule']}'"))
        mode = graph.modes[group]
        outer = mode.outer if isinstance(mode, Geo) else None
        if outer is not None and is_always_zero(read_rate(outer["learning_rate"])):
            texts.append(_warn(op, f"the outer optimizer '{outer['op']}'"))
    return texts


def _warn(op: Op, optimizer: str) -> str:
    message = f"the learning rate of {optimizer} is 0, so that it trains nothing"
    hint = "write a rate above 0, or trainable: false for parameters that do not change"
    return str(PlacerError(message, span=op.source, hint=hint))
