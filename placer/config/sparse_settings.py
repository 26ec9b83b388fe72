"""What settings of a sparse table must be, beyond their types: those of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Final

from placer.config import optimizers
from placer.config.initializers import DISTRIBUTIONS
from placer.config.sparse import (
    Bloom,
    Count,
    Forgetting,
    Probability,
    Score,
    SparseTable,
)

MOST_PARTITIONS: Final = 1 << 16
MOST_ROWS: Final = 1 << 40
"""The greatest capacity of a table."""


def find_problems(settings: SparseTable) -> Iterator[str]:
    """Yield what is wrong with the settings of a table."""
    partitions = settings.partitions
    if settings.dim < 1:
        yield f"its rows have {settings.dim} columns"
    if not 2 <= partitions <= MOST_PARTITIONS or partitions & (partitions - 1):
        yield f"it has {partitions} partitions"
    capacity = settings.capacity
    if capacity is not None and not partitions <= capacity <= MOST_ROWS:
        yield f"its capacity is {capacity}, and it has {partitions} partitions"
    if settings.bounds is not None and not settings.bounds[0] < settings.bounds[1]:
        yield f"its bounds are {settings.bounds[0]} and {settings.bounds[1]}"
    form, arguments = settings.init
    count = 1 if form == "constant" else 2
    if form not in (*DISTRIBUTIONS, "constant") or len(arguments) != count:
        yield f"its values cannot begin as '{form}' with {len(arguments)} numbers"
    if not all(map(isfinite, (*arguments, settings.default))):
        yield "its first or default values are not finite"
    yield from _admission_problems(settings)
    yield from _forgetting_problems(settings.forget, scored=settings.score is not None)
    if settings.score is not None and not 0.0 < settings.score.decay <= 1.0:
        yield f"its scores decay by {settings.score.decay}"
    problem = optimizers.check(settings.rule, settings.hyper)
    if problem:
        yield problem
    elif optimizers.RULES[settings.rule].is_two_phase:
        yield f"'{settings.rule}' needs the norm of a whole parameter"


def _admission_problems(settings: SparseTable) -> Iterator[str]:
    match settings.admit:
        case Count(n=n) if n < 1:
            yield f"it admits keys at their occurrence {n}"
        case Bloom(n=n, nbytes=nbytes) if not 1 <= n <= 255 or nbytes < 64:
            yield f"it admits keys at their occurrence {n} by a filter of {nbytes} bytes"
        case Probability(p=p) if not 0.0 < p <= 1.0:
            yield f"it admits keys with probability {p}"
        case Score() if settings.score is None:
            yield "it admits keys by a score, and has none"


def _forgetting_problems(forget: Forgetting, *, scored: bool) -> Iterator[str]:
    for name in ("every", "unseen_steps", "unseen_seconds"):
        number = getattr(forget, name)
        if number is not None and number < 1:
            yield f"'{name}' of what it forgets is {number}"
    if forget.score_below is not None and not scored:
        yield "it forgets keys by a score, and has none"
