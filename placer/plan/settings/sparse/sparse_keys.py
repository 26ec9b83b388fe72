"""The spec keys of a sparse table, which is an `embedding` with `sparse: true`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from placer.plan.settings.mistake import Mistake, MistakeError
from placer.plan.settings.sparse.table import (
    MOST_PARTITIONS,
    MOST_ROWS,
    Admission,
    Always,
    Bloom,
    Count,
    Forgetting,
    Probability,
    Score,
    Scoring,
    Share,
    can_be_divided_into,
)
from placer.plan.settings.sparse.table import SparseTable as Settings


class _Keys(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of nested key mappings."""


class BloomKeys(_Keys, frozen=True):
    """`bloom`: count occurrences in a counting Bloom filter of `bytes` bytes."""

    count: Annotated[int, Meta(ge=1)]
    bytes: Annotated[int, Meta(ge=64)]


class AdmitKeys(_Keys, frozen=True):
    """`admit`: exactly one of these keys."""

    count: Annotated[int, Meta(ge=1)] | None = None
    bloom: BloomKeys | None = None
    probability: Share | None = None
    score: float | None = None


class ForgetKeys(Forgetting, frozen=True, kw_only=True):
    """`forget`: the rows to delete.

    `time` names the input with each row's time in seconds, for `unseen_seconds`.
    """

    time: str | None = None


class ScoreKeys(_Keys, frozen=True):
    """`score`: how much an occurrence adds to the score of its key.

    `show` and `click` name inputs with one number per row; `show` may be the number 1.
    """

    show: str | Literal[1] = 1
    click: str | None = None
    show_weight: float = 0.1
    click_weight: float = 1.0
    decay: Share = 1.0


Admit = Literal["always"] | AdmitKeys
_MOST: Final = (2 - 2**-23) * 2.0**127
"""The largest finite float32."""

KEYS: Final = (
    "partitions",
    "admit",
    "forget",
    "score",
    "capacity",
    "evict",
    "index",
    "default",
    "bounds",
)
"""The op attributes that configure the keys of a table."""


def read_settings(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table settings that differ from their defaults, in graph form.

    The result leaves out fields that follow from the parameter and its optimizer.

    Args:
        attrs: all attributes of the op, including defaults.

    Raises:
        MistakeError: an attribute is wrong. The message is a predicate of the op.
    """
    partitions = attrs["partitions"]
    if not can_be_divided_into(partitions):
        raise _wrong(
            f"needs a power of two from 2 to {MOST_PARTITIONS} for 'partitions', not"
            f" {partitions}",
            "partitions",
        )
    capacity, bounds = attrs["capacity"], attrs["bounds"]
    if capacity is not None and not partitions <= capacity <= MOST_ROWS:
        raise _wrong(
            f"needs a 'capacity' from {partitions} (its partitions) to {MOST_ROWS}, not"
            f" {capacity}",
            "capacity",
        )
    if bounds is not None and not (len(bounds) == 2 and bounds[0] < bounds[1]):
        raise _wrong("needs 'bounds' as [low, high] with low < high", "bounds")
    if attrs["evict"] == "lfu" and capacity is None:
        raise _wrong(
            "has 'evict: lfu', but no 'capacity'",
            "evict",
            hint="write capacity: N, the maximum number of rows",
        )
    for number in bounds or ():
        _check_float(number, "'bounds'", "bounds")
    _check_float(attrs["default"], "'default'", "default")
    score = _scoring(attrs["score"])
    settings = Settings(
        name="",
        dim=1,
        partitions=partitions,
        admit=_admission(attrs["admit"]),
        forget=_forgetting(attrs["forget"], score),
        score=score,
        capacity=capacity,
        evict=attrs["evict"],
        index=attrs["index"],
        default=float(attrs["default"]),
        bounds=None if bounds is None else (float(bounds[0]), float(bounds[1])),
    )
    if isinstance(settings.admit, Score) and settings.score is None:
        raise _wrong(
            "admits keys by score, but has no 'score'",
            "admit",
            hint="write score: {show: 1}",
        )
    _check_counted(settings.admit, settings.forget)
    if settings.default != 0.0 and isinstance(settings.admit, Always):
        raise _wrong(
            "admits all keys, and a key without a row reads its initial values, so"
            " 'default' has no effect",
            "default",
            hint="write admit: {count: 2}, or leave default out",
        )
    if settings.index == "compact" and isinstance(settings.admit, Count | Score):
        raise _wrong(
            "cannot count keys without a row in a compact index",
            "index",
            hint="use a Bloom filter, as admit: {bloom: {count: 5, bytes: 1000000}}",
        )
    plain = Settings(name="", dim=1)
    written = msgspec.to_builtins(settings)
    return {
        key: _frozen(written[key])
        for key in KEYS
        if getattr(settings, key) != getattr(plain, key)
    }


def written_keys(table: Settings) -> dict[str, Any]:
    """Return the settings of a table with the keys of a spec, without the inputs.

    Limits of `forget` that are off are left out; without a limit, `forget` is None.
    """
    score, forget = table.score, table.forget
    limits = {name: getattr(forget, name) for name in Forgetting.__struct_fields__}
    return {
        "dim": table.dim,
        "partitions": table.partitions,
        "admit": _written_admission(table.admit),
        "forget": None
        if forget == Forgetting()
        else {name: limit for name, limit in limits.items() if limit is not None},
        "score": None
        if score is None
        else {
            "show_weight": score.no_click,
            "click_weight": score.click,
            "decay": score.decay,
        },
        "capacity": table.capacity,
        "evict": table.evict,
        "index": table.index,
        "default": table.default,
        "bounds": table.bounds,
    }


def _written_admission(admit: Admission) -> Any:
    match admit:
        case Count(n):
            return {"count": n}
        case Bloom(n, nbytes):
            return {"bloom": {"count": n, "bytes": nbytes}}
        case Probability(p):
            return {"probability": p}
        case Score(least):
            return {"score": least}
    return "always"


def read_inputs(attrs: Mapping[str, Any]) -> dict[str, str]:
    """Return the inputs that a table needs besides keys: `show`, `click` and `time`.

    Args:
        attrs: all attributes of the op, checked by `read_settings`.
    """
    inputs: dict[str, str | None] = {}
    if attrs["score"] is not None:
        score = msgspec.convert(attrs["score"], ScoreKeys)
        inputs["show"] = None if score.show == 1 else str(score.show)
        inputs["click"] = score.click
    if attrs["forget"] is not None:
        inputs["time"] = msgspec.convert(attrs["forget"], ForgetKeys).time
    return {key: name for key, name in inputs.items() if name is not None}


def settings_of(attrs: Mapping[str, Any], **others: Any) -> Settings:
    """Return the settings of a table from its graph attributes and the other fields."""
    return msgspec.convert({**attrs, **others}, Settings)


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, as in graph attributes."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items() if item is not None}
    return value


def _admission(written: Any) -> Admission:
    if written == "always":
        return Always()
    keys = msgspec.convert(written, AdmitKeys)
    if sum(value is not None for value in msgspec.structs.astuple(keys)) != 1:
        raise _wrong(
            "needs exactly one of count, bloom, probability and score as 'admit'",
            "admit",
            hint="write {count: 5}, or always",
        )
    if keys.count is not None:
        return Count(keys.count)
    if keys.bloom is not None:
        if keys.bloom.count > 255:
            message = f"counts up to 255 with 'bloom', not to {keys.bloom.count}"
            hint = "write {count: N} to count exactly"
            raise _wrong(message, "admit", "bloom", "count", hint=hint)
        return Bloom(keys.bloom.count, keys.bloom.bytes)
    if keys.probability is not None:
        return Probability(float(keys.probability))
    assert keys.score is not None
    _check_float(keys.score, "'score' of 'admit'", "admit", "score")
    return Score(float(keys.score))


def _forgetting(written: Any, score: Scoring | None) -> Forgetting:
    if written is None:
        return Forgetting()
    keys = msgspec.convert(written, ForgetKeys)
    limits = {name: getattr(keys, name) for name in Forgetting.__struct_fields__}
    every = limits.pop("every")
    if (keys.unseen_seconds is None) != (keys.time is None):
        raise _wrong(
            "needs both 'unseen_seconds' and 'time' in 'forget', or neither",
            "forget",
            hint="write {unseen_seconds: 86400, time: INPUT}",
        )
    for name in ("norm_below", "score_below"):
        _check_float(getattr(keys, name), f"'{name}' of 'forget'", "forget", name)
    if keys.score_below is not None and score is None:
        raise _wrong(
            "forgets keys by score, but has no 'score'",
            "forget",
            "score_below",
            hint="write score: {show: 1}",
        )
    decays = score is not None and score.decay != 1.0
    if not decays and all(limit is None for limit in limits.values()):
        raise _wrong(
            "forgets no key, so 'forget' has no effect",
            "forget",
            hint="write a limit, such as {unseen_steps: 1000}, or leave forget out",
        )
    return Forgetting(every=every, **limits)


def _check_counted(admit: Admission, forget: Forgetting) -> None:
    """Raise MistakeError if rows are forgotten, but never the keys that are counted
    before they have a row: their counters would fill the memory."""
    by_time = forget.unseen_steps is not None or forget.unseen_seconds is not None
    if by_time or not isinstance(admit, Count | Score):
        return
    if forget.score_below is not None and isinstance(admit, Count):
        raise _wrong(
            "counts keys without a row, which have no score, so 'score_below' never"
            " forgets them",
            "forget",
            "score_below",
            hint="admit keys by their score too, as admit: {score: 0.2}, or add"
            " unseen_steps to 'forget'",
        )
    if forget.norm_below is not None and forget.score_below is None:
        raise _wrong(
            "counts keys without a row, which have no values, so 'norm_below' never"
            " forgets them",
            "forget",
            "norm_below",
            hint="add unseen_steps to 'forget'",
        )


def _scoring(written: Any) -> Scoring | None:
    if written is None:
        return None
    keys = msgspec.convert(written, ScoreKeys)
    for name in ("show_weight", "click_weight"):
        _check_float(getattr(keys, name), f"'{name}'", "score", name)
    if keys.click is None and keys.click_weight != ScoreKeys().click_weight:
        raise _wrong(
            "has no 'click' input, so 'click_weight' has no effect",
            "score",
            "click_weight",
            hint="write click: INPUT, or leave 'click_weight' out",
        )
    return Scoring(no_click=keys.show_weight, click=keys.click_weight, decay=keys.decay)


def _check_float(number: float | None, what: str, *path: str) -> None:
    """Raise MistakeError unless a number, if given, is a finite float32."""
    if number is not None and not abs(number) <= _MOST:
        raise _wrong(f"needs a finite float32 for {what}, not {number}", *path)


def _wrong(message: str, *path: str, hint: str | None = None) -> MistakeError:
    return MistakeError(Mistake(path, message, hint))
