"""Features: columns that are computed from the columns of a source.

`docs/features.md` defines what each of them computes. `placer.readers.features` computes
them for the rows of a run, and `placer.exporting.prepare_features` in an exported model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from math import isfinite
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from placer.plan.settings.fields import Count, Seed, doc

MAX_BOUNDARIES = 10_000
"""The most boundaries that a feature of buckets may have."""
MAX_PARTS = 16
"""The most parts that a cross may have."""
COLUMN = "*"
"""In the name of a feature: the name of the column that it is computed from."""

Operand = str | list[str]
"""A column, or a glob over columns, or a list of them."""


class Feature(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How a column is computed: by one of the first eight keys, and its options."""

    hash: Annotated[
        Operand | None, doc("the key of a text or a whole number, by XXH64")
    ] = None
    cross: Annotated[
        list[str] | None, doc("the key of a combination of columns and features")
    ] = None
    buckets: Annotated[
        Operand | None, doc("the number of the bucket that a number is in")
    ] = None
    log1p: Annotated[
        Operand | None, doc("the natural logarithm of 1 plus a number")
    ] = None
    standardize: Annotated[
        Operand | None, doc("a number minus 'mean', divided by 'std'")
    ] = None
    days: Annotated[
        Operand | None, doc("the days from 1970-01-01 to a date or a time")
    ] = None
    hour: Annotated[
        Operand | None, doc("the hour of a time, 0 to 23, and 24 if it is missing")
    ] = None
    weekday: Annotated[
        Operand | None,
        doc("the day of the week of a date, Monday is 0, and 7 if it is missing"),
    ] = None
    type: Annotated[
        Literal["text", "integer"], doc("of hash: what the column holds")
    ] = "text"
    field: Annotated[
        str | None,
        doc("of hash: the name that seeds the keys; by default that of the column"),
    ] = None
    seed: Annotated[Seed, doc("of hash and cross: the seed of the keys")] = 0
    bins: Annotated[
        Count | None, doc("of hash and cross: the value is the key modulo this number")
    ] = None
    boundaries: Annotated[
        list[float] | None,
        doc("of buckets: the least number of each bucket but the first, ascending"),
    ] = None
    log: Annotated[
        Annotated[float, Meta(gt=1)] | None,
        doc("of buckets: the boundaries are the powers of this number, from 1"),
    ] = None
    to: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        doc("of buckets with log: the largest boundary is at most this number"),
    ] = None
    mean: Annotated[float | None, doc("of standardize: the mean of the numbers")] = None
    std: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("of standardize: the standard deviation of the numbers"),
    ] = None
    since: Annotated[
        str | None, doc("of days: the date from which days count, such as 2024-05-01")
    ] = None

    @property
    def kind(self) -> str:
        """The key that says what is computed. A valid feature has exactly one."""
        for kind in KINDS:
            if getattr(self, kind) is not None:
                return kind
        raise AssertionError(self)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The keys of `KINDS` that are written."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def operands(self) -> tuple[str, ...]:
        """The columns, globs or features that it is computed from."""
        operand: Operand = getattr(self, self.kind)
        return (operand,) if isinstance(operand, str) else tuple(operand)

    @property
    def reads_text(self) -> bool:
        """Whether the columns that it is computed from hold text."""
        return self.kind == "cross" or (self.kind == "hash" and self.type == "text")

    @property
    def is_key(self) -> bool:
        """Whether the values are keys, of which all 64 bits count."""
        return self.kind in ("hash", "cross") and self.bins is None

    @property
    def is_float(self) -> bool:
        """Whether the values are not whole numbers."""
        return self.kind in FLOATS

    @property
    def size(self) -> int | None:
        """The number of different values, from 0; None for keys and floats."""
        if self.kind == "buckets":
            return len(boundaries_of(self)) + 2
        return SIZES.get(self.kind, self.bins)


Features = Mapping[str, Feature]

KINDS: Mapping[str, tuple[str, ...]] = {
    "hash": ("type", "field", "seed", "bins"),
    "cross": ("seed", "bins"),
    "buckets": ("boundaries", "log", "to"),
    "log1p": (),
    "standardize": ("mean", "std"),
    "days": ("since",),
    "hour": (),
    "weekday": (),
}
"""The keys that say what is computed, and the options of each."""

FLOATS = ("log1p", "standardize", "days")
"""Those whose values are floats."""
OF_TIMES = ("days", "hour", "weekday")
"""Those that are computed from dates and times."""
SIZES = {"hour": 25, "weekday": 8}
"""The number of different values of a part of a time, of which the last is a missing one."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with the declaration of a feature.

    Attributes:
        key: the key at fault; None for the feature as a whole, "" for its name.
        message: what is wrong.
        hint: what to do.
        item: the index of the item at fault, of a key with a list.
    """

    key: str | None
    message: str
    hint: str | None = None
    item: int | None = None


def check_feature(name: str, feature: Feature) -> Mistake | None:
    """Return what is wrong with a feature, which depends on no other one."""
    what = f"feature '{name}'"
    listed = ", ".join(KINDS)
    if not feature.kinds:
        hint = f"write one of the keys {listed}, such as {{hash: COLUMN}}"
        return Mistake(None, f"{what} does not say what it computes", hint)
    if len(feature.kinds) > 1:
        first, second, *_ = feature.kinds
        message = f"{what} has both '{first}' and '{second}'"
        hint = "give each a name of its own, and use the one as the column of the other"
        return Mistake(second, message, hint)
    kind = feature.kind
    for field in structs.fields(Feature):
        key = field.name
        is_option = key not in KINDS and getattr(feature, key) != field.default
        if is_option and key not in KINDS[kind]:
            owner = next(k for k, options in KINDS.items() if key in options)
            options = ", ".join(KINDS[kind]) or "none"
            hint = f"the options of '{kind}': {options}"
            return Mistake(key, f"'{key}' is an option of '{owner}'", hint)
    return (
        _check_name(name, feature)
        or _check_operands(name, feature)
        or _check_options(feature)
    )


def _check_name(name: str, feature: Feature) -> Mistake | None:
    if not name or not name.isprintable() or name != name.strip():
        return Mistake("", f"{name!r} cannot be the name of a feature")
    if any(character in name for character in "?[") or name.count(COLUMN) > 1:
        message = f"'{name}' cannot be the name of a feature"
        return Mistake("", message, "one * stands for the name of the column")
    if COLUMN in name and feature.kind == "cross":
        message = f"a cross is one feature, so its name cannot have a {COLUMN}"
        return Mistake("", message)
    return None


def _check_operands(name: str, feature: Feature) -> Mistake | None:
    kind, operands = feature.kind, feature.operands
    if kind == "cross":
        if not 2 <= len(operands) <= MAX_PARTS:
            message = f"a cross has 2 to {MAX_PARTS} parts, not {len(operands)}"
            return Mistake(kind, message, "list columns or features: cross: [a, b]")
    elif not operands:
        return Mistake(kind, f"'{kind}' names no column")
    elif COLUMN not in name and isinstance(getattr(feature, kind), list):
        message = f"'{name}' is one feature, and reads one column"
        hint = f"write a * in its name for the name of each column: '*_{kind}'"
        return Mistake(kind, message, hint)
    for index, operand in enumerate(operands):
        item = index if isinstance(getattr(feature, kind), list) else None
        if operand in operands[:index]:
            return Mistake(kind, f"'{operand}' is listed twice", None, item)
        if operand == name or name == COLUMN:
            message = f"feature '{name}' has the name of its column"
            hint = f"give it a name of its own, such as '{name}_{kind}'"
            return Mistake("", message, hint)
    return None


def _check_options(feature: Feature) -> Mistake | None:
    if feature.since is not None and first_day_of(feature) is None:
        message = f"'since' must be a date, not '{feature.since}'"
        return Mistake("since", message, "write it as 2024-05-01")
    if feature.kind == "standardize":
        for key in ("mean", "std"):
            number = getattr(feature, key)
            if number is None:
                message = f"'{key}' of 'standardize' is missing"
                return Mistake(None, message, "write mean: NUMBER, std: NUMBER")
            if not isfinite(number):
                return Mistake(key, f"'{key}' must be finite, not {number}")
    if feature.kind != "buckets":
        return None
    if (feature.boundaries is None) == (feature.log is None):
        message = "buckets have either 'boundaries' or 'log'"
        hint = "write boundaries: [18, 25, 65], or log: 2, to: 1000"
        return Mistake("log" if feature.log else None, message, hint)
    if feature.log is not None and feature.to is None:
        message = "'to' is missing: the powers of 'log' go up to this number"
        return Mistake("log", message, "write log: 2, to: 1000")
    if feature.log is None and feature.to is not None:
        return Mistake("to", "'to' is an option of 'log'")
    boundaries = boundaries_of(feature)
    key = "boundaries" if feature.log is None else "log"
    if not boundaries:
        return Mistake(key, "there is no boundary")
    if len(boundaries) > MAX_BOUNDARIES:
        return Mistake(key, f"there are more than {MAX_BOUNDARIES} boundaries")
    for index, (low, high) in enumerate(pairwise(boundaries), start=1):
        if not low < high:
            message = f"boundaries ascend, and {high:g} follows {low:g}"
            return Mistake(key, message, None, index if feature.boundaries else None)
    for index, boundary in enumerate(boundaries):
        if not isfinite(boundary):
            return Mistake(
                key, f"a boundary must be finite, not {boundary}", None, index
            )
    return None


def first_day_of(feature: Feature) -> int | None:
    """Return the day that `days` counts from, in days since 1970-01-01; None if it is no
    date."""
    if feature.since is None:
        return 0
    try:
        day = datetime.strptime(feature.since, "%Y-%m-%d").date()
    except ValueError:
        return None
    return day.toordinal() - date(1970, 1, 1).toordinal()


def boundaries_of(feature: Feature) -> tuple[float, ...]:
    """Return the boundaries of a feature of buckets, at most `MAX_BOUNDARIES` + 1.

    Those of `log` are products of floats, so that they have the same bits everywhere.
    """
    if feature.boundaries is not None:
        return tuple(map(float, feature.boundaries))
    assert feature.log is not None
    assert feature.to is not None
    boundaries = [1.0]
    while len(boundaries) <= MAX_BOUNDARIES:
        power = boundaries[-1] * feature.log
        if power > feature.to or power == boundaries[-1]:
            break
        boundaries.append(power)
    return tuple(boundaries)
