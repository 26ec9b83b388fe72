"""When a run evaluates, saves and stops early: `evaluate_every`, `train.checkpoint` and
`train.early_stopping`."""

from __future__ import annotations

import re
from math import isfinite
from typing import Annotated, Final, Literal

from msgspec import Struct

from placer.errors import PlacerError
from placer.plan.settings.fields import Count, ValueName, doc

Unit = Literal["steps", "seconds", "epochs"]
FORM = "500 steps, 10s, 5m, 2h or epoch"
"""Examples of intervals, for messages and help."""
DEFAULT_KEEP = 3

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_STEPS = re.compile(r"(?P<number>[1-9][0-9]{0,9})( steps?)?")
_TIME = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?) ?(?P<unit>[smh])")


class Interval(Struct, frozen=True, forbid_unknown_fields=True):
    """How often something is done: every `number` steps, seconds or epochs."""

    unit: Unit
    number: float

    @staticmethod
    def parse(text: str | int) -> Interval:
        """Read an interval such as `500 steps`, `10s` or `epoch`; a number is steps.

        Raises PlacerError for anything else.
        """
        if str(text) == "epoch":
            return EPOCH
        if match := _STEPS.fullmatch(str(text)):
            return Interval("steps", float(match["number"]))
        match = _TIME.fullmatch(str(text))
        if match and (seconds := float(match["number"]) * _SECONDS[match["unit"]]):
            return Interval("seconds", seconds)
        raise PlacerError(f"'{text}' is not an interval", hint=f"write {FORM}")

    def __str__(self) -> str:
        match self.unit:
            case "epochs":
                return "epoch"
            case "steps":
                return f"{self.number:g} steps"
        return f"{self.number:g}s"


EPOCH: Final = Interval("epochs", 1.0)


class Best(Struct, frozen=True, forbid_unknown_fields=True):
    """Which evaluation is the best one."""

    metric: Annotated[ValueName, doc("a metric of the evaluation")]
    mode: Annotated[
        Literal["min", "max"], doc("whether a smaller or a larger value is better")
    ]

    def improves(self, value: float, on: float | None) -> bool:
        """Whether a value is better than the best so far; only finite ones are."""
        if not isfinite(value):
            return False
        if on is None:
            return True
        return value < on if self.mode == "min" else value > on


class Checkpointing(Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoints that a run saves: `train.checkpoint` of a spec.

    `to` is the folder, relative to that of the spec, None for the one that the launcher
    chooses; `every` is how often one is saved,
    `keep` how many are kept, besides the one with the best evaluation.
    """

    to: str | None
    every: Interval
    keep: Count
    best: Best | None = None


class EarlyStop(Struct, frozen=True, forbid_unknown_fields=True):
    """Stop after `patience` evaluations that are not better by at least `min_delta`."""

    best: Best
    patience: Count
    min_delta: float
