"""Add gradients and optimizers to a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placer.config.optimizers import find
from placer.front.program import current_program
from placer.front.variable import Variable


def append_backward(loss: Variable | None = None) -> None:
    """Set the place of the gradients of ops without a place: that of the open guards.

    The gradient of an op with a place is always computed at that place. Without this
    call, or without an open guard, the gradient of every op is computed where the op
    runs.

    Args:
        loss: The loss. It can be left to `minimize`.

    Raises:
        SpecError: At the caller's line: if this is called twice for a program or after
            `minimize`, or if `loss` cannot be minimized.

    Example:
        with place_guard("/node:worker/cpu"):
            append_backward(loss)
        with place_guard("/node:ps/cpu"):
            optimizer.SGD(0.1).minimize(loss)
    """
    current_program().append_backward(loss)


@dataclass(frozen=True)
class Optimizer:
    """An update rule with its settings, returned by functions of `placer.optimizer`."""

    rule: str
    settings: Mapping[str, Any]

    def minimize(self, loss: Variable) -> None:
        """Train the program's parameters with this rule, to minimize the loss.

        The place of the open guards is that of the parameters and their slots. So it
        also determines where gradients are summed: on servers, or on the workers.
        Several optimizers divide the parameters by `match`; the last one has none.

        Args:
            loss: A scalar value of the current program.

        Raises:
            SpecError: At the caller's line, if the loss or a setting is wrong.

        Example:
            with place_guard("/node:ps/cpu"):
                optimizer.Adam(0.01).minimize(loss)
        """
        current_program().minimize(loss, self.rule, self.settings)


def make_optimizer(rule: str, settings: Mapping[str, Any]) -> Optimizer:
    """Return an optimizer, without settings that are None or have default values."""
    defaults: dict[str, Any] = {"update": "sync"}
    defaults |= {key: hyper.default for key, hyper in find(rule).hyper.items()}
    changed = {
        key: value
        for key, value in settings.items()
        if value is not None and value != defaults.get(key)
    }
    return Optimizer(rule, changed)
