"""The lanes of a stream of a Python function: their number, and their positions."""

from __future__ import annotations

from math import isqrt
from typing import Any

from msgspec import Struct

from placer.plan.settings.fields import Size
from placer.plan.settings.mistake import Mistake


class LanePosition(Struct, frozen=True):
    """The position in a lane after the last row that was trained.

    Attributes:
        mark: the state of the last mark before this row; None if no mark precedes it.
        rows: the number of rows that were trained since the mark.
        digests: the CRC-32 of the values of these rows, by input.
    """

    mark: Any = None
    rows: Size = 0
    digests: dict[str, Size] = {}


def find_lane_mistake(
    lanes: int, batch: int, readers: int = 1, microbatches: int = 1
) -> Mistake | None:
    """Return the mistake in a number of lanes, or None.

    Each lane has the same part of each batch, and each reader reads whole lanes.

    Args:
        lanes: the number of lanes.
        batch: the number of rows of a batch.
        readers: the number of nodes that share the rows of a batch.
        microbatches: the number of parts in which the batch passes through the model.
    """
    shares = readers * microbatches
    if batch % lanes == 0 and lanes % shares == 0:
        return None
    if readers == 1 or microbatches == 1:
        shared = f"{shares} {'readers' if microbatches == 1 else 'microbatches'}"
    else:
        shared = f"{readers} readers times {microbatches} microbatches"
    if batch % shares:
        return Mistake(
            ("batch",),
            f"no number of lanes divides a batch of {batch} rows among {shared}",
            f"make the batch a multiple of {shares}, such as {-(-batch // shares) * shares}",
        )
    if batch % lanes:
        message = f"{lanes} lanes do not divide a batch of {batch} rows"
    else:
        message = f"{lanes} lanes cannot be divided among {shared}"
    near = _near(lanes / shares, batch // shares)
    hint = " or ".join(f"lanes: {shares * each}" for each in near)
    if batch % lanes == 0:
        hint += f"; {readers_hint(lanes, microbatches)}"
    return Mistake(("stream", "lanes"), message, f"use {hint}")


def readers_hint(lanes: int, microbatches: int) -> str:
    """Return the numbers of nodes that can share the rows of lanes.

    >>> readers_hint(12, 2)
    '12 lanes can be divided among 1, 2, 3 or 6 readers'
    """
    counts = [n for n in range(1, lanes + 1) if lanes % (n * microbatches) == 0]
    *others, last = map(str, counts or [lanes])
    names = f"{', '.join(others)} or {last}" if others else last
    return f"{lanes} lanes can be divided among {names} readers"


def _near(number: float, count: int) -> list[int]:
    """Return the divisors of a count next to a number: one below and one above."""
    low = [each for each in range(1, isqrt(count) + 1) if count % each == 0]
    divisors = {*low, *(count // each for each in low)}
    below = [each for each in divisors if each < number]
    above = [each for each in divisors if each > number]
    return [*sorted(below)[-1:], *sorted(above)[:1]]
