"""Describes an optax optimizer for the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from placer.place.types import TensorType
from placer.plan.settings.training.transformations import Transformation


def takes_rate(make: Callable[..., Any]) -> bool:
    """Return True if a function has a parameter `learning_rate`."""
    raise NotImplementedError


def describe(
    make: Callable[..., Any],
    types: Mapping[str, TensorType],
    *,
    fn: str,
    averaged: Callable[..., Any] | None = None,
    eval_params: str = "",
    wide: bool,
) -> Transformation:
    """Trace an optax optimizer on the whole tree of its parameters, and describe it.

    Args:
        make: returns the `GradientTransformation`. A parameter `learning_rate` receives the
            learning rate of the step.
        types: the types of the parameters by name, in the order of the graph.
        fn: the text of `make`, as `MODULE:NAME`.
        averaged: returns the values for evaluations from the state and the parameters.
        eval_params: the text of `averaged`, as `MODULE:NAME`.
        wide: whether the precision is float64.

    Raises:
        PlacerError: if placer cannot run the optimizer. Errors of the functions propagate.
    """
    raise NotImplementedError
