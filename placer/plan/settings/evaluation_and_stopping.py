"""Settings for evaluation, checkpoints, publications and early stopping: `train.eval`,
`train.checkpoint`, `train.publish` and `train.early_stopping`."""

from __future__ import annotations

import re
from math import isfinite
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from placer.errors import PlacerError
from placer.plan.settings.fields import Count, doc

Unit = Literal["steps", "seconds", "epochs", "auto"]
FORM = "500 steps, 10s, 5m, 2h, epoch or auto"
"""Examples of intervals, for messages and help."""
DEFAULT_KEEP = 3

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_STEPS = re.compile(r"(?P<number>[1-9][0-9]{0,9})( steps?)?")
_TIME = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?) ?(?P<unit>[smh])")


class Interval(Struct, frozen=True, forbid_unknown_fields=True):
    """A period: a `number` of steps, seconds or epochs. With the unit `auto`, the run chooses
    the time between two checkpoints."""

    unit: Unit
    number: float

    @staticmethod
    def parse(text: str | int) -> Interval:
        """Parse an interval such as `500 steps`, `10s` or `epoch`; a number means steps.

        Raises PlacerError for invalid text.
        """
        if str(text) == "epoch":
            return EPOCH
        if str(text) == "auto":
            return AUTO
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
            case "auto":
                return "auto"
            case "steps":
                return f"{self.number:g} steps"
        return f"{self.number:g}s"


EPOCH: Final = Interval("epochs", 1.0)
AUTO: Final = Interval("auto", 1.0)


class Best(Struct, frozen=True, forbid_unknown_fields=True):
    """How to find the best evaluation."""

    metric: Annotated[str, doc("the metric to compare")]
    mode: Annotated[
        Literal["min", "max"],
        doc("min if a smaller value is better, max if a larger is"),
    ]

    def improves(self, value: float, on: float | None) -> bool:
        """Whether a finite value is better than the best value so far."""
        if not isfinite(value):
            return False
        if on is None:
            return True
        return value < on if self.mode == "min" else value > on


class Evaluating(Struct, frozen=True, forbid_unknown_fields=True):
    """When to evaluate. A run always evaluates after the last step."""

    every: Annotated[
        str | Count, doc("`epoch`, or a number of steps, as 100 or `100 steps`")
    ] = "epoch"

    @property
    def interval(self) -> Interval:
        """How often to evaluate, in steps or epochs.

        Raises PlacerError if `every` is invalid.
        """
        hint = "write epoch, or 100 steps"
        try:
            interval = Interval.parse(self.every)
        except PlacerError as error:
            raise PlacerError(error.message, hint=hint) from error
        if interval.unit not in ("steps", "epochs"):
            other = "in seconds" if interval.unit == "seconds" else f"'{interval}'"
            message = (
                f"'every' of an evaluation must be in steps or epochs, not {other}"
            )
            raise PlacerError(message, hint=hint)
        return interval


class Checkpointing(Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how often checkpoints are saved."""

    to: Annotated[
        str | None,
        doc(
            "the folder, relative to the spec's; by default `checkpoints` next to the"
            " build"
        ),
    ] = None
    every: Annotated[
        str | Count | None,
        doc(
            f"how often to save: {FORM}; a number means steps. By default `epoch`, or"
            " `auto` with `--restarts`"
        ),
    ] = None
    keep: Annotated[Count, doc("how many to keep, not counting the best one")] = (
        DEFAULT_KEEP
    )
    best: Annotated[
        Best | None,
        doc(
            "how to choose the best checkpoint, which is also kept; by default as"
            " `early_stopping`, else by the loss"
        ),
    ] = None

    @property
    def interval(self) -> Interval | None:
        """How often to save; None without `every`. Raises PlacerError if it is invalid."""
        return None if self.every is None else Interval.parse(self.every)


class Publishing(Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how often a run publishes parameters and changed rows for serving. It
    always publishes at its end."""

    folder: Annotated[
        str | None,
        doc("the folder, relative to the spec's; or `--publish DIR`"),
    ] = None
    every: Annotated[
        str | Count,
        doc(
            "how often to publish: 500 steps, 10s, 5m, 2h, epoch or pass; a number means"
            " steps"
        ),
    ] = "epoch"
    base: Annotated[
        Count, doc("each so many publications, one has all rows of sparse tables")
    ] = 24
    keep: Annotated[
        Count, doc("how many of these to keep, with the publications after them")
    ] = 2

    @property
    def interval(self) -> Interval:
        """How often to publish. Raises PlacerError if `every` is invalid."""
        hint = "write 500 steps, 10s, 5m, 2h, epoch or pass"
        if self.every == "pass":
            return EPOCH
        try:
            interval = Interval.parse(self.every)
        except PlacerError as error:
            raise PlacerError(error.message, hint=hint) from error
        if interval.unit == "auto":
            raise PlacerError("'every' of publications cannot be auto", hint=hint)
        return interval


class EarlyStopping(Best, frozen=True, kw_only=True):
    """Stop a run when its evaluations no longer improve."""

    patience: Annotated[
        Count, doc("evaluations without improvement before stopping")
    ] = 1
    min_delta: Annotated[
        float, Meta(ge=0), doc("the smallest change that counts as an improvement")
    ] = 0.0
