"""Add gradients and optimizers to a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from placer.config.optimizers import RULES
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


SETTINGS = ("match", "clip", "update", "shard_state", "all_reduce", "sum")
"""The settings of every optimizer besides its rate and its hyperparameters."""

Rate = float | Mapping[str, Any]
"""A number, or a schedule such as `{"cosine": {"init": 0.01, "steps": 1000}}`."""


@dataclass(frozen=True)
class Optimizer:
    """An update rule with its settings: a class of `placer.optimizer`.

    The fields of a class are the hyperparameters of its rule.
    """

    learning_rate: Rate
    _: KW_ONLY
    match: str | None = None
    clip: Mapping[str, float] | None = None
    update: Literal["sync"] = "sync"
    shard_state: bool = False
    all_reduce: Literal["direct", "ring"] = "direct"
    sum: str | None = None

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
        rule = type(self).__name__.lower()
        keys = ("learning_rate", *RULES[rule].hyper, *SETTINGS)
        settings = {
            key: value
            for key in keys
            if (value := getattr(self, key)) is not None
            and value != getattr(type(self), key, None)  # the default
        }
        current_program().minimize(loss, rule, settings)
