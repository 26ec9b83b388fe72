"""Settings of a sparse table, which the compiler and the runtime share."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from placer.plan.settings.fields import ValueName

PARTITIONS: Final = 256
"""Partitions of a table by default."""
MOST_PARTITIONS: Final = 1 << 16
MOST_ROWS: Final = 1 << 40
"""The greatest capacity of a table."""
Share = Annotated[float, Meta(gt=0, le=1)]
"""A number above 0 and up to 1."""


class Always(Struct, frozen=True, forbid_unknown_fields=True, tag="always"):
    """Each key that is updated has a row, and one that has none yet reads the values with
    which its row would begin."""


class Count(Struct, frozen=True, forbid_unknown_fields=True, tag="count"):
    """A key gets a row when it has occurred `n` times, counted exactly."""

    n: int


class Bloom(Struct, frozen=True, forbid_unknown_fields=True, tag="bloom"):
    """A key gets a row when it has occurred about `n` times, counted by a counting Bloom
    filter of `nbytes` in all: it may get one too early, and never gets it too late."""

    n: int
    nbytes: int


class Probability(Struct, frozen=True, forbid_unknown_fields=True, tag="probability"):
    """A key gets a row with probability `p` at each occurrence. Whether it does is a
    function of the seed, the table, the key and the step."""

    p: float


class Score(Struct, frozen=True, forbid_unknown_fields=True, tag="score"):
    """A key gets a row when its score is at least `least`."""

    least: float


Admission = Always | Count | Bloom | Probability | Score


class Forgetting(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which keys a table forgets. A sweep over all partitions takes `every` steps; in each
    step, some whole partitions are looked at. None stands for no limit.

    Attributes:
        every: the steps of a sweep.
        unseen_steps: keys that have not occurred for more steps than these.
        unseen_seconds: keys that have not occurred for more seconds than these, by the
            time of events.
        score_below: keys with a lower score, after the decay of that sweep.
        norm_below: rows with a smaller Euclidean norm of their values.
    """

    every: Annotated[int, Meta(ge=1)] = PARTITIONS
    unseen_steps: Annotated[int, Meta(ge=1)] | None = None
    unseen_seconds: Annotated[int, Meta(ge=1)] | None = None
    score_below: float | None = None
    norm_below: Annotated[float, Meta(gt=0)] | None = None


class Scoring(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The score of a key: the sum over its occurrences of `(show - click) * no_click +
    click * click`, times `decay` in each sweep."""

    no_click: float = 0.1
    click: float = 1.0
    decay: Share = 1.0


class SparseTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of rows by key.

    Attributes:
        name: the name of the parameter, on which its initial values depend.
        dim: the values of a row.
        rule, hyper: the optimizer's rule and its hyperparameters.
        init: the initializer, reduced to a distribution and its arguments, such as
            `("uniform", (-0.1, 0.1))` or `("constant", (0.0,))`.
        default: what a key without a row reads, unless it is admitted always.
        partitions: the number of partitions, a power of two.
        admit: which keys get a row.
        forget: which keys lose it.
        score: the score of keys, if they have one.
        capacity: rows at most, of which each partition has its share.
        evict: which rows a full partition loses: the least recently or the least
            frequently used ones.
        bounds: the least and the greatest value of an element.
        index: `wide`, or `compact`, which takes half the bytes and more time, and has no
            room for keys that are counted and have no row.
    """

    name: ValueName
    dim: Annotated[int, Meta(ge=1)]
    rule: str = "sgd"
    hyper: dict[str, Any] = field(default_factory=dict)
    init: tuple[str, tuple[float, ...]] = ("constant", (0.0,))
    default: float = 0.0
    partitions: Annotated[int, Meta(ge=1, le=MOST_PARTITIONS)] = PARTITIONS
    admit: Admission = Always()
    forget: Forgetting = Forgetting()
    score: Scoring | None = None
    capacity: int | None = None
    evict: Literal["lru", "lfu"] = "lru"
    bounds: tuple[float, float] | None = None
    index: Literal["wide", "compact"] = "wide"


def entry_form(table: SparseTable) -> str:
    """Return what the entries of keys without a row mean, or nothing if there are none:
    saved entries are of no use to a table where they mean something else."""
    kinds = {Count: "occurrences", Score: "score"}
    if type(table.admit) not in kinds:
        return ""
    forget = table.forget
    by_step = forget.unseen_seconds is None or forget.unseen_steps is not None
    return f"{kinds[type(table.admit)]} and {'step' if by_step else 'second'}"
