"""When a run evaluates, saves and stops early: `train.eval`, `train.checkpoint` and
`train.early_stopping`."""

from __future__ import annotations

import re
from math import isfinite
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from placer.errors import PlacerError
from placer.plan.settings.fields import Count, doc

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

    metric: Annotated[str, doc("a metric of the evaluation")]
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


class Evaluating(Struct, frozen=True, forbid_unknown_fields=True):
    """When to evaluate; always after the last step too."""

    every: Annotated[
        str | Count, doc("`epoch`, or a number of steps such as 100 or 100 steps")
    ] = "epoch"

    @property
    def interval(self) -> Interval:
        """How often to evaluate: after a number of steps, or of epochs.

        Raises PlacerError if `every` is something else.
        """
        hint = "write epoch, or 100 steps"
        try:
            interval = Interval.parse(self.every)
        except PlacerError as error:
            raise PlacerError(error.message, hint=hint) from error
        if interval.unit == "seconds":
            message = "an evaluation comes after a number of steps, not after a time"
            raise PlacerError(message, hint=hint)
        return interval


class Checkpointing(Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how often checkpoints are saved."""

    to: Annotated[
        str | None,
        doc(
            "a folder, relative to that of the spec; by default `checkpoints` beside the"
            " build"
        ),
    ] = None
    every: Annotated[str | Count, doc(f"{FORM}; a number is a number of steps")] = (
        "epoch"
    )
    keep: Annotated[Count, doc("how many are kept, besides the best one")] = (
        DEFAULT_KEEP
    )
    best: Annotated[
        Best | None,
        doc(
            "the metric by which the best one is saved and kept too; by default that of"
            " `early_stopping`, or the loss"
        ),
    ] = None

    @property
    def interval(self) -> Interval:
        """How often one is saved. Raises PlacerError if `every` is not an interval."""
        return Interval.parse(self.every)


class EarlyStopping(Best, frozen=True, kw_only=True):
    """Stop the run after several evaluations without a better one."""

    patience: Annotated[Count, doc("the number of such evaluations")] = 1
    min_delta: Annotated[
        float, Meta(ge=0), doc("how much better a value must be to count")
    ] = 0.0
