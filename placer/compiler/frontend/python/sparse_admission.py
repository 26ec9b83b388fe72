"""PaddlePaddle's classes that decide which keys get a row of a sparse table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from placer.compiler.frontend.python.variable import Variable
from placer.plan.settings.checks import describe_value
from placer.system.callsite import call_error

ENTRIES = ("CountFilterEntry", "ProbabilityEntry", "ShowClickEntry")
"""The classes of this file that `placer.layers` re-exports."""


@dataclass(frozen=True)
class ProbabilityEntry:
    """Each occurrence of a key gives it a row with a fixed probability.

    Args:
        probability: Greater than 0 and less than 1.

    Raises:
        SpecError: At the caller's line, for any other value.

    Example:
        layers.sparse_embedding(ids, [1000, 16], entry=layers.ProbabilityEntry(0.1))
    """

    probability: float

    def __post_init__(self) -> None:
        given = self.probability
        if not isinstance(given, float) or not 0 < given < 1:
            message = "probability must be a float in (0, 1)"
            raise call_error(f"{message}, not {describe_value(given)}")


@dataclass(frozen=True)
class CountFilterEntry:
    """A key gets a row once it has occurred `count_filter` times.

    Args:
        count_filter: Number of occurrences. With 0, a key gets a row at its first
            update.

    Raises:
        SpecError: At the caller's line, if it is negative or not a whole number.

    Example:
        layers.sparse_embedding(ids, [1000, 16], entry=layers.CountFilterEntry(10))
    """

    count_filter: int

    def __post_init__(self) -> None:
        given = self.count_filter
        if not isinstance(given, int) or isinstance(given, bool) or given < 0:
            message = "count_filter must be an int of at least 0"
            raise call_error(f"{message}, not {describe_value(given)}")


@dataclass(frozen=True)
class ShowClickEntry:
    """Keys have a score, computed from how often they were shown and clicked.

    Args:
        show: The input with the number of times each row was shown, or its name.
        click: The input with the number of times each row was clicked, or its name.

    Raises:
        SpecError: At the caller's line, for any other value.

    Example:
        layers.sparse_embedding(
            ids, [1000, 16], entry=layers.ShowClickEntry("show", "click")
        )
    """

    show: Variable | str
    click: Variable | str

    def __post_init__(self) -> None:
        for key, given in (("show", self.show), ("click", self.click)):
            if not isinstance(given, Variable | str):
                message = f"{key} must be an input or its name"
                raise call_error(f"{message}, not {describe_value(given)}")


Entry = ProbabilityEntry | CountFilterEntry | ShowClickEntry


def attributes_of(entry: Entry | None) -> dict[str, Any]:
    """Return the attributes of an `embedding` with the same meaning. Raises SpecError
    at the caller's line for any other value."""
    match entry:
        case None | CountFilterEntry(0):
            return {}
        case CountFilterEntry(count):
            return {"admit": {"count": count}}
        case ProbabilityEntry(probability):
            return {"admit": {"probability": probability}}
        case ShowClickEntry(show, click):
            return {"score": {"show": show, "click": click}}
    message = f"an entry must be one of {', '.join(ENTRIES)}"
    raise call_error(f"{message}, not {describe_value(entry)}")
