"""Features: columns computed from the columns of a source.

`docs/how-to/features.md` defines the computation of each kind. `placer.readers.features` computes
features during a run, `placer.compiler.serving.prepare_features` in an exported model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from math import isfinite
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from placer.plan.settings.fields import Count, Seed, doc
from placer.plan.settings.mistake import Mistake

MAX_BOUNDARIES = 10_000
"""The maximum number of boundaries of a bucket feature."""
MAX_PARTS = 16
"""The maximum number of parts of a cross."""
COLUMN = "*"
"""In a feature name, this character stands for the name of the source column."""

Operand = str | list[str]
"""A column, a glob over columns, or a list of them."""
Argument = float | tuple[float, ...]


class Feature(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The definition of a feature: one key such as `hash` or `cross`, and its options."""

    hash: Annotated[
        Operand | None, doc("hash a text or a whole number to a key, by XXH64")
    ] = None
    cross: Annotated[
        list[str] | None, doc("combine several columns and features into one key")
    ] = None
    buckets: Annotated[
        Operand | None, doc("the index of the bucket that contains a number")
    ] = None
    log1p: Annotated[
        Operand | None, doc("the natural logarithm of 1 plus a number")
    ] = None
    standardize: Annotated[
        Operand | None, doc("subtract 'mean' from a number, then divide by 'std'")
    ] = None
    days: Annotated[
        Operand | None, doc("the number of days from 1970-01-01 to a date or time")
    ] = None
    hour: Annotated[
        Operand | None, doc("the hour of a time, 0 to 23; 24 if the time is missing")
    ] = None
    weekday: Annotated[
        Operand | None,
        doc("the day of the week of a date, 0 (Monday) to 6; 7 if the date is missing"),
    ] = None
    type: Annotated[
        Literal["text", "integer"], doc("for hash: the type of the column's cells")
    ] = "text"
    field: Annotated[
        str | None,
        doc("for hash: the name that seeds the keys; by default the column's name"),
    ] = None
    seed: Annotated[Seed, doc("for hash and cross: the seed of the keys")] = 0
    bins: Annotated[
        Count | None, doc("for hash and cross: use the key modulo this number")
    ] = None
    boundaries: Annotated[
        list[float] | None,
        doc("for buckets: the lower bounds of all buckets except the first, ascending"),
    ] = None
    log: Annotated[
        Annotated[float, Meta(gt=1)] | None,
        doc("for buckets: use the powers of this number as boundaries, from 1"),
    ] = None
    to: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        doc("for buckets with log: the upper limit of the boundaries"),
    ] = None
    mean: Annotated[float | None, doc("for standardize: the mean of the numbers")] = (
        None
    )
    std: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        doc("for standardize: the standard deviation of the numbers"),
    ] = None
    since: Annotated[
        str | None, doc("for days: count from this date, such as 2024-05-01")
    ] = None

    @property
    def kind(self) -> str:
        """The key of the computation. A valid feature has exactly one."""
        return self.kinds[0]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The keys of `KINDS` that the feature sets."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def declaration(self) -> Kind:
        """The declaration of the feature's kind."""
        return KINDS[self.kind]

    @property
    def operands(self) -> tuple[str, ...]:
        """The columns, globs or features that the feature is computed from."""
        operand: Operand = getattr(self, self.kind)
        return (operand,) if isinstance(operand, str) else tuple(operand)

    def operand_path(self, index: int) -> tuple[str | int, ...]:
        """Return the path of keys to an operand."""
        is_list = isinstance(getattr(self, self.kind), list)
        return (self.kind, index) if is_list else (self.kind,)

    @property
    def is_cross(self) -> bool:
        """Whether the feature combines several columns or features."""
        return self.declaration.reads == "parts"

    @property
    def reads_text(self) -> bool:
        """Whether the source columns hold text."""
        return self.is_cross or (self.kind == "hash" and self.type == "text")

    @property
    def has_key(self) -> bool:
        """Whether the feature is computed from a key. With `bins`, its value is the
        remainder."""
        return self.declaration.gives == "keys"

    @property
    def is_key(self) -> bool:
        """Whether the values are full 64-bit keys."""
        return self.has_key and self.bins is None

    @property
    def is_float(self) -> bool:
        """Whether the values are floats."""
        return self.declaration.gives == "floats"

    @property
    def size(self) -> int | None:
        """The number of distinct values from 0; None for keys and floats."""
        return self.declaration.size(self)


Features = Mapping[str, Feature]


@dataclass(frozen=True, slots=True)
class Kind:
    """The declaration of a kind of feature.

    `placer.readers.features.computation` computes features during a run,
    `placer.compiler.serving.prepare_features` in an exported model.

    Attributes:
        reads: the operand: the cells of a column, numbers (of a column or a feature), or
            the keys of several parts.
        gives: the type of the values; whole numbers start at 0.
        options: the keys that the kind accepts besides its own.
        size: returns the number of distinct values; None for keys and floats.
        check: returns a mistake in options that are valid alone, or None.
        arguments: returns the numbers that an exported model needs.
    """

    reads: Literal["a column", "numbers", "parts"]
    gives: Literal["keys", "floats", "whole numbers"]
    options: tuple[str, ...] = ()
    size: Callable[[Feature], int | None] = lambda feature: None
    check: Callable[[Feature], Mistake | None] = lambda feature: None
    arguments: Callable[[Feature], tuple[Argument, ...]] = lambda feature: ()


def check_feature(name: str, feature: Feature) -> Mistake | None:
    """Check one feature on its own, and return its first mistake or None.

    The path of the mistake starts with the feature's name.
    """
    mistake = _check_kind(name, feature) or (
        _check_name(name, feature)
        or _check_operands(name, feature)
        or feature.declaration.check(feature)
    )
    return mistake and mistake.below(name)


def _check_kind(name: str, feature: Feature) -> Mistake | None:
    what = f"feature '{name}'"
    if not feature.kinds:
        hint = f"write one of the keys {', '.join(KINDS)}, such as {{hash: COLUMN}}"
        return Mistake((), f"{what} has no computation", hint)
    if len(feature.kinds) > 1:
        first, second, *_ = feature.kinds
        message = f"{what} has both '{first}' and '{second}'"
        hint = "write two features, and use one as the column of the other"
        return Mistake((second,), message, hint)
    for field in structs.fields(Feature):
        key, options = field.name, feature.declaration.options
        is_option = key not in KINDS and getattr(feature, key) != field.default
        if is_option and key not in options:
            owner = next(k for k, each in KINDS.items() if key in each.options)
            hint = f"options of '{feature.kind}': {', '.join(options) or 'none'}"
            return Mistake((key,), f"'{key}' is an option of '{owner}'", hint)
    return None


def _check_name(name: str, feature: Feature) -> Mistake | None:
    if not name or not name.isprintable() or name != name.strip():
        return Mistake((), f"{name!r} is not a valid feature name", of_key=True)
    if any(character in name for character in "?[") or name.count(COLUMN) > 1:
        message = f"'{name}' is not a valid feature name"
        hint = "use one * for the name of the column, and neither ? nor ["
        return Mistake((), message, hint, of_key=True)
    if COLUMN in name and feature.is_cross:
        message = f"a cross is one feature, so its name must not contain a {COLUMN}"
        return Mistake((), message, of_key=True)
    return None


def _check_operands(name: str, feature: Feature) -> Mistake | None:
    kind, operands = feature.kind, feature.operands
    if feature.is_cross:
        if not 2 <= len(operands) <= MAX_PARTS:
            message = f"a cross has 2 to {MAX_PARTS} parts, not {len(operands)}"
            return Mistake((kind,), message, "list columns or features: cross: [a, b]")
    elif not operands:
        return Mistake((kind,), f"'{kind}' names no column")
    elif COLUMN not in name and isinstance(getattr(feature, kind), list):
        message = f"'{name}' is one feature, but reads a list of columns"
        hint = f"write a * in its name for the name of each column: '*_{kind}'"
        return Mistake((kind,), message, hint)
    for index, operand in enumerate(operands):
        if operand in operands[:index]:
            path = feature.operand_path(index)
            return Mistake(path, f"'{operand}' is listed twice")
        if operand == name or name == COLUMN:
            message = f"feature '{name}' has the same name as its column"
            hint = f"give the feature another name, such as '{name}_{kind}'"
            return Mistake((), message, hint, of_key=True)
    return None


def _check_since(feature: Feature) -> Mistake | None:
    if feature.since is not None and first_day_of(feature) is None:
        message = f"'since' must be a date such as 2024-05-01, not '{feature.since}'"
        return Mistake(("since",), message, "write it as 2024-05-01")
    return None


def _check_standardize(feature: Feature) -> Mistake | None:
    for key in ("mean", "std"):
        number = getattr(feature, key)
        if number is None:
            message = f"'{key}' of 'standardize' is missing"
            return Mistake((), message, "write mean: NUMBER, std: NUMBER")
        if not isfinite(number):
            return Mistake((key,), f"'{key}' must be finite, not {number}")
    return None


def _check_boundaries(feature: Feature) -> Mistake | None:
    if (feature.boundaries is None) == (feature.log is None):
        message = "buckets need either 'boundaries' or 'log'"
        hint = "write boundaries: [18, 25, 65], or log: 2, to: 1000"
        return Mistake(("log",) if feature.log else (), message, hint)
    if feature.log is not None and feature.to is None:
        message = "'log' needs 'to', the upper limit of its powers"
        return Mistake(("log",), message, "write log: 2, to: 1000")
    if feature.log is None and feature.to is not None:
        return Mistake(("to",), "'to' has no effect without 'log'")
    boundaries = boundaries_of(feature)
    path: tuple[str | int, ...] = ("boundaries" if feature.log is None else "log",)
    if not boundaries:
        return Mistake(path, "buckets need at least one boundary")
    if len(boundaries) > MAX_BOUNDARIES:
        return Mistake(path, f"buckets have at most {MAX_BOUNDARIES} boundaries")
    for index, (low, high) in enumerate(pairwise(boundaries), start=1):
        if not low < high:
            path = (*path, index) if feature.boundaries else path
            return Mistake(
                path, f"boundaries must ascend, but {high:g} follows {low:g}"
            )
    for index, boundary in enumerate(boundaries):
        if not isfinite(boundary):
            path = (*path, index) if feature.boundaries else path
            return Mistake(path, f"a boundary must be finite, not {boundary}")
    return None


def first_day_of(feature: Feature) -> int | None:
    """Return the start day of `days` in days since 1970-01-01; None for an invalid date."""
    if feature.since is None:
        return 0
    try:
        day = datetime.strptime(feature.since, "%Y-%m-%d").date()
    except ValueError:
        return None
    return day.toordinal() - date(1970, 1, 1).toordinal()


def boundaries_of(feature: Feature) -> tuple[float, ...]:
    """Return the boundaries of a bucket feature, limited to `MAX_BOUNDARIES` + 1.

    For `log` they are repeated float products, so their bits are the same everywhere.
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


def _scale_of(feature: Feature) -> tuple[float, float]:
    assert feature.mean is not None
    assert feature.std is not None
    return feature.mean, feature.std


def _days_before(feature: Feature) -> tuple[int, ...]:
    first = first_day_of(feature)
    return () if feature.since is None or first is None else (first,)


KINDS: Mapping[str, Kind] = {
    "hash": Kind(
        "a column",
        "keys",
        ("type", "field", "seed", "bins"),
        size=lambda feature: feature.bins,
    ),
    "cross": Kind("parts", "keys", ("seed", "bins"), size=lambda feature: feature.bins),
    "buckets": Kind(
        "numbers",
        "whole numbers",
        ("boundaries", "log", "to"),
        size=lambda feature: len(boundaries_of(feature)) + 2,
        check=_check_boundaries,
        arguments=lambda feature: (boundaries_of(feature),),
    ),
    "log1p": Kind("numbers", "floats"),
    "standardize": Kind(
        "numbers",
        "floats",
        ("mean", "std"),
        check=_check_standardize,
        arguments=_scale_of,
    ),
    "days": Kind(
        "a column", "floats", ("since",), check=_check_since, arguments=_days_before
    ),
    # The last value stands for a missing time.
    "hour": Kind("a column", "whole numbers", size=lambda feature: 25),
    "weekday": Kind("a column", "whole numbers", size=lambda feature: 8),
}
"""The kinds of features by their key in a spec."""
