"""Add gradients and optimizers to a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from msgspec.structs import fields

from placer.compiler.frontend.python.program import current_program
from placer.compiler.frontend.python.variable import Variable
from placer.plan.settings.training.optimizers import RULES
from placer.system.callsite import call_error


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

Update = Literal["sync", "async", "half_async"] | Mapping[str, Any]
"""A mode, or one with settings such as `{"geo": {"every": 10}}`."""

Rate = float | Mapping[str, Any]
"""A number, or a schedule such as `{"cosine": {"init": 0.01, "steps": 1000}}`."""


@dataclass(frozen=True)
class Optimizer:
    """An update rule with its settings: a class of `placer.optimizer`.

    These are the settings of all rules. A class adds the hyperparameters of its own rule,
    whose name in specs is `rule`. A subclass of a class has its rule.

    Args:
        learning_rate: A number, or a schedule as in docs/spec.md.
        match: A glob pattern for the names of the parameters to train; by default all
            that no other optimizer has.
        clip: A bound for the gradients of these parameters, as `{"global_norm": 1.0}`.
        update: How the workers agree on updates: "sync", "async", "half_async", or a mode
            with settings, as `{"geo": {"every": 10}}`.
        shard_state: Whether each worker stores and updates only a range of the
            parameters, if the optimizer is on the workers.
        all_reduce: How gradients move between workers: "direct" or in a "ring".
        sum: The place of servers that sum the gradients of workers, as `/node:ps/cpu`; by
            default the workers sum them.

    Example:
        optimizer.Adam(0.01, match="*.w", clip={"global_norm": 1.0}).minimize(loss)
    """

    rule: ClassVar[str]

    learning_rate: Rate
    _: KW_ONLY
    match: str | None = None
    clip: Mapping[str, float] | None = None
    update: Update = "sync"
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
        rule = getattr(self, "rule", None)
        if rule not in RULES:
            raise call_error(
                f"{type(self).__name__} has no rule of placer.optimizer",
                "derive it from a class of placer.optimizer, such as Adam",
            )
        defaults = {field.name: field.default for field in fields(RULES[rule])}
        defaults |= {key: getattr(Optimizer, key) for key in SETTINGS}
        settings: dict[str, Any] = {"learning_rate": self.learning_rate}
        settings |= {
            key: value
            for key, default in defaults.items()
            if (value := getattr(self, key)) is not None and value != default
        }
        current_program().minimize(loss, rule, settings)
