"""The settings of sparse tables, shared by the compiler and the runtime."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from placer.plan.settings.fields import ValueName

PARTITIONS: Final = 256
"""The default number of partitions."""
MOST_PARTITIONS: Final = 1 << 16
MOST_ROWS: Final = 1 << 40
"""The largest allowed capacity."""
Share = Annotated[float, Meta(gt=0, le=1)]
"""A fraction, above 0 and up to 1."""


class Always(Struct, frozen=True, forbid_unknown_fields=True, tag="always"):
    """Every updated key receives a row. Until then, a key reads its initial values."""


class Count(Struct, frozen=True, forbid_unknown_fields=True, tag="count"):
    """A key receives a row after `n` occurrences, counted exactly."""

    n: int


class Bloom(Struct, frozen=True, forbid_unknown_fields=True, tag="bloom"):
    """A key receives a row after about `n` occurrences, counted by a Bloom filter.

    The filter takes `nbytes` in total. A key may receive its row too early, never too
    late.
    """

    n: int
    nbytes: int


class Probability(Struct, frozen=True, forbid_unknown_fields=True, tag="probability"):
    """A key receives a row with probability `p` at each occurrence.

    The random decision depends only on the seed, the table, the key and the step.
    """

    p: float


class Score(Struct, frozen=True, forbid_unknown_fields=True, tag="score"):
    """A key receives a row when its score reaches `least`."""

    least: float


Admission = Always | Count | Bloom | Probability | Score


class Forgetting(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which rows a table deletes. Limits of None are off.

    A sweep over all partitions takes `every` steps. Each step checks a few partitions. With
    `every: pass`, one sweep over all partitions follows the last step of each pass of a stream.

    Attributes:
        every: the steps of a sweep, or `pass`.
        unseen_steps: delete keys that have not occurred for more steps.
        unseen_seconds: delete keys that have not occurred for more seconds of event time.
        score_below: delete keys with a lower score, after the decay of the sweep.
        norm_below: delete rows whose values have a smaller Euclidean norm.
    """

    every: Literal["pass"] | Annotated[int, Meta(ge=1)] = PARTITIONS
    unseen_steps: Annotated[int, Meta(ge=1)] | None = None
    unseen_seconds: Annotated[int, Meta(ge=1)] | None = None
    score_below: float | None = None
    norm_below: Annotated[float, Meta(gt=0)] | None = None


COUNTED_INPUTS: Final = ("show", "click", "time")
"""The inputs that a table may read besides its keys, in the order of programs and messages."""


class Scoring(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The score of a key: a sum over its occurrences of `(show - click) * no_click +
    click * click`. Each sweep multiplies the score by `decay`."""

    no_click: float = 0.1
    click: float = 1.0
    decay: Share = 1.0


class SparseTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table with one row per key.

    Attributes:
        name: the name of the parameter; it seeds the initial values.
        dim: the number of values in a row.
        rule: the update rule.
        hyper: the hyperparameters of the rule.
        init: the initializer as a distribution with arguments, such as
            `("uniform", (-0.1, 0.1))` or `("constant", (0.0,))`.
        default: the value read for a key without a row, unless `admit` is `Always`.
        partitions: the number of partitions, a power of two from 2 on.
        admit: which keys receive a row.
        forget: which rows are deleted.
        score: how keys are scored, if at all.
        capacity: the maximum number of rows, shared equally by the partitions.
        evict: whether a full partition deletes the least recently (`lru`) or least
            frequently (`lfu`) used rows.
        bounds: the least and greatest allowed value of an element.
        index: `wide`, or `compact`: half the bytes, but slower, and without room to count
            keys that have no row.
    """

    name: ValueName
    dim: Annotated[int, Meta(ge=1)]
    rule: str = "sgd"
    hyper: dict[str, Any] = field(default_factory=dict)
    init: tuple[str, tuple[float, ...]] = ("constant", (0.0,))
    default: float = 0.0
    partitions: Annotated[int, Meta(ge=2, le=MOST_PARTITIONS)] = PARTITIONS
    admit: Admission = Always()
    forget: Forgetting = Forgetting()
    score: Scoring | None = None
    capacity: int | None = None
    evict: Literal["lru", "lfu"] = "lru"
    bounds: tuple[float, float] | None = None
    index: Literal["wide", "compact"] = "wide"


def can_be_divided_into(partitions: int) -> bool:
    """Whether a table may have a number of partitions: a power of two from 2 on."""
    return 2 <= partitions <= MOST_PARTITIONS and not partitions & (partitions - 1)


def entry_form(table: SparseTable) -> str:
    """Return the meaning of saved entries of keys without a row, or "" without entries.

    A table can load saved entries only if their meaning is the same.
    """
    kinds = {Count: "occurrences", Score: "score"}
    if type(table.admit) not in kinds:
        return ""
    forget = table.forget
    by_step = forget.unseen_seconds is None or forget.unseen_steps is not None
    return f"{kinds[type(table.admit)]} and {'step' if by_step else 'second'}"
