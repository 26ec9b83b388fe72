"""Passes the configuration of an optax optimizer to its function."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from placer.errors import PlacerError

RATE = "learning_rate"
"""The parameter of a function for the learning rate of the step."""

Make = Callable[..., Any]
"""Returns an optax `GradientTransformation`."""


def takes_rate(make: Make) -> bool:
    """Return True if a function has a parameter `learning_rate`."""
    return RATE in inspect.signature(make).parameters


@lru_cache(maxsize=16)
def with_config(make: Make, config: str) -> Make:
    """Return a function that needs no arguments besides `learning_rate`.

    The result is the same object for the same arguments, so that a trace of it is cached.

    Args:
        make: a function of the user.
        config: its arguments by name, as JSON; may be empty.

    Raises:
        PlacerError: if it cannot be called with these arguments.
    """
    given = json.loads(config or "{}")
    if RATE in given:
        raise PlacerError(
            f"'with' has {RATE}, which changes during training",
            hint=f"write {RATE} next to fn, or call the parameter lr",
        )
    rate = {RATE: 0.0} if takes_rate(make) else {}
    try:
        inspect.signature(make).bind(**given, **rate)
    except TypeError as error:
        raise PlacerError(
            f"the function cannot be called: {error}",
            hint="pass its arguments by name: with: {b1: 0.9}, in Python"
            ' (function, {"b1": 0.9})',
        ) from error
    return partial(make, **given) if given else make


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    fn = fn.func if isinstance(fn, partial) else fn
    return getattr(fn, "__name__", type(fn).__name__)
