"""What is minimised, and by which rule."""

from __future__ import annotations

from collections.abc import Mapping as Entries
from dataclasses import dataclass
from typing import Any

from placer.config.optimizers import find
from placer.front.program import current_program
from placer.front.variable import Variable


def append_backward(loss: Variable | None = None) -> None:
    """Place gradients by the guards that are open here.

    A gradient stands with its op where that has a place; the place that is open here is
    for gradients of ops that have none. Without it, and without this call, every gradient
    stands with its op. The loss may be left to `minimize`. Raises SpecError.
    """
    current_program().append_backward(loss)


@dataclass(frozen=True)
class Optimizer:
    """An update rule with its settings, of `placer.optimizer`."""

    rule: str
    settings: Entries[str, Any]

    def minimize(self, loss: Variable) -> None:
        """Train the program's parameters by this rule so that the loss falls.

        The place that is open here is where the parameters and their state stand, and
        so says how gradients meet. Several optimizers part the parameters by `match`,
        the last has none. Raises SpecError.
        """
        current_program().minimize(loss, self.rule, self.settings)


def of_rule(rule: str, settings: Entries[str, Any]) -> Optimizer:
    """The rule with what is said of it: None, and defaults, are not said."""
    defaults: dict[str, Any] = {"update": "sync"}
    defaults |= {key: hyper.default for key, hyper in find(rule).hyper.items()}
    said = {
        key: value
        for key, value in settings.items()
        if value is not None and value != defaults.get(key)
    }
    return Optimizer(rule, said)
