"""Adds gradients and optimizers to a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from msgspec.structs import fields

from placer.compiler.frontend.python.program import current_program
from placer.compiler.frontend.python.variable import Variable
from placer.plan.settings.training.optimizers import RULES
from placer.system.callsite import call_error


def append_backward(loss: Variable | None = None) -> None:
    """Use the open guards as the place of the gradients of ops without a place.

    The gradient of an op with a place is always computed there. Without this call, or
    without an open guard, each gradient is computed where its op runs.

    Args:
        loss: The loss. `minimize` can set it instead.

    Raises:
        SpecError: At the caller's line, if this is called twice for a program or after
            `minimize`, or if `loss` cannot be minimized.

    Example:
        with place_guard("/node:worker/cpu"):
            append_backward(loss)
        with place_guard("/node:ps/cpu"):
            optimizer.SGD(0.1).minimize(loss)
    """
    current_program().append_backward(loss)


SETTINGS = ("match", "clip", "update", "shard_state", "all_reduce", "sum")
"""The settings of every optimizer, in addition to its rate and hyperparameters."""

Update = Literal["sync", "async", "half_async"] | Mapping[str, Any]
"""An update mode, or one with settings such as `{"geo": {"every": 10}}`."""

Rate = float | Mapping[str, Any]
"""A number, or a schedule such as `{"cosine": {"init": 0.01, "steps": 1000}}`."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The settings of every optimizer. `Optimizer` documents them."""

    match: str | None = None
    clip: Mapping[str, float] | None = None
    update: Update = "sync"
    shard_state: bool = False
    all_reduce: Literal["direct", "ring"] = "direct"
    sum: str | None = None

    def changed_settings(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        return {
            key: value
            for key in SETTINGS
            if (value := getattr(self, key)) is not None
            and value != getattr(OptimizerSettings, key)
        }


@dataclass(frozen=True)
class Optimizer(OptimizerSettings):
    """An update rule with its settings: a class of `placer.optimizer`.

    All rules have these settings. A class adds the hyperparameters of its rule; `rule`
    is the name of the rule in specs. A subclass inherits the rule.

    Args:
        learning_rate: A number, or a schedule (docs/reference/spec.md).
        match: A glob over the names of the parameters to train; by default all
            parameters that no other optimizer trains.
        clip: A bound on the gradients of these parameters, such as `{"global_norm":
            1.0}`.
        update: How the workers agree on updates: "sync", "async", "half_async", or a
            mode with settings, such as `{"geo": {"every": 10}}`.
        shard_state: If true, each worker stores and updates only a range of the
            parameters. Needs an optimizer on the workers.
        all_reduce: How workers exchange gradients: "direct" or in a "ring".
        sum: The place of servers that sum the gradients, such as `/node:ps/cpu`; by
            default the workers sum them.

    Example:
        optimizer.Adam(0.01, match="*.w", clip={"global_norm": 1.0}).minimize(loss)
    """

    rule: ClassVar[str]

    learning_rate: Rate

    def minimize(self, loss: Variable) -> None:
        """Train the program's parameters with this rule, to minimize the loss.

        The open guards place the parameters and their slots, so they also decide where
        gradients are summed: on servers, or on the workers. Several optimizers divide
        the parameters by `match`; the last optimizer has no `match`.

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
        settings: dict[str, Any] = {"learning_rate": self.learning_rate}
        settings |= {
            key: value
            for key, default in defaults.items()
            if (value := getattr(self, key)) is not None and value != default
        }
        settings |= self.changed_settings()
        current_program().minimize(loss, rule, settings)
