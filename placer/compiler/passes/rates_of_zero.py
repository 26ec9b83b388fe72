"""Finds optimizers with a learning rate of 0, which train nothing."""

from __future__ import annotations

from placer.compiler.graph.graph import Graph, Op
from placer.errors import PlacerError
from placer.plan.settings.training.optimizers import OPTAX
from placer.plan.settings.training.schedules import is_always_zero, read_rate
from placer.plan.settings.training.update_modes import Geo


def find_rates_of_zero(graph: Graph) -> list[str]:
    """Return a warning for each optimizer whose learning rate is 0 in every step.

    Warnings include the position in the spec and a hint.

    Args:
        graph: the graph of a model, before the passes.
    """
    texts = []
    for group, op in graph.optimizers.items():
        # An optax optimizer may train with a rate of 0.
        if op.attrs["rule"] != OPTAX and is_always_zero(op.attrs["learning_rate"]):
            texts.append(_warn(op, f"'{op.attrs['rule']}'"))
        mode = graph.modes[group]
        outer = mode.outer if isinstance(mode, Geo) else None
        if outer is not None and is_always_zero(read_rate(outer["learning_rate"])):
            texts.append(_warn(op, f"the outer optimizer '{outer['op']}'"))
    return texts


def _warn(op: Op, optimizer: str) -> str:
    message = f"{optimizer} trains nothing: its learning rate is always 0"
    hint = "write a rate above 0, or trainable: false for constant parameters"
    return str(PlacerError(message, span=op.source, hint=hint))
