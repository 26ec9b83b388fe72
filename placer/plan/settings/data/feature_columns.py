"""The features of a source by name, once its columns are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import structs

from placer.errors import DataError, did_you_mean
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.features import (
    COLUMN,
    FLOATS,
    OF_TIMES,
    Feature,
    Features,
)


class FeatureError(DataError):
    """A feature is wrong.

    Attributes:
        feature: its name, as it is declared.
        operand: the index of the operand that is wrong; None for its name.
    """

    def __init__(
        self, feature: str, operand: int | None, message: str, hint: str | None
    ) -> None:
        super().__init__(message, hint=hint)
        self.feature = feature
        self.operand = operand


def expand_features(
    source: str,
    features: Features,
    columns: Sequence[str],
    *,
    keeps_missing: bool = False,
) -> dict[str, Feature]:
    """Return the features of a source by name, each of a single column but for crosses.

    Args:
        source: the text of the source, for messages.
        features: the declared features; globs select columns in the order of
            `columns`. A feature without a * in its name reads the column that it names,
            which may have the characters of a glob.
        columns: the columns of the source, `in_natural_order` where that counts.
        keeps_missing: whether a feature of a column that is not there is no error: it is
            kept, and a glob that matches nothing stands for no feature.

    Raises:
        FeatureError: a feature has the name of a column or of another feature, or a
            column that is not there, or crosses what has no key.
    """
    expanded: dict[str, Feature] = {}
    for name, feature in features.items():
        for own_name, single in _singles(
            source, name, feature, columns, expanded, keeps_missing
        ):
            if own_name in columns:
                raise FeatureError(
                    name,
                    None,
                    f"{source} has a column '{own_name}', and a feature has this name"
                    " too",
                    "rename the feature",
                )
            if own_name in expanded:
                message = f"two features are named '{own_name}'"
                raise FeatureError(name, None, message, None)
            expanded[own_name] = single
    return expanded


def _singles(
    source: str,
    name: str,
    feature: Feature,
    columns: Sequence[str],
    before: Features,
    keeps_missing: bool,
) -> Iterable[tuple[str, Feature]]:
    """Yield the features that one declaration stands for, and their names."""
    singles: list[tuple[str, Feature]] = []
    for index, operand in enumerate(feature.operands):
        selected = _select(operand, columns, before)
        if (is_one := COLUMN not in name) and selected not in ([], [operand]):
            if feature.kind != "cross" and not keeps_missing:
                raise FeatureError(
                    name,
                    index,
                    f"'{name}' is one feature, and reads one column",
                    "write a * in its name for the name of each column:"
                    f" '*_{feature.kind}'",
                )
            selected = []
        if not selected and not keeps_missing:
            message = f"{source} has no column '{operand}' for feature '{name}'"
            hint = did_you_mean(operand, [*columns, *before])
            raise FeatureError(name, index, message, hint)
        if not selected and (is_one or not is_glob(operand)):
            selected = [operand]
        for each in selected:
            _check_operand(name, feature, index, each, before)
            if feature.kind != "cross":
                changed = structs.replace(feature, **{feature.kind: each})
                singles.append((name.replace(COLUMN, each), changed))
    return [(name, feature)] if feature.kind == "cross" else singles


def _select(operand: str, columns: Sequence[str], before: Features) -> Sequence[str]:
    if operand in columns or operand in before:
        return [operand]
    return [each for each in columns if is_glob(operand) and fnmatchcase(each, operand)]


def check_features(features: Features) -> None:
    """Check what is known of features without the columns of their source.

    Raises FeatureError for one that is computed from a feature below it, or from one
    that has no values of its kind.
    """
    before: dict[str, Feature] = {}
    for name, feature in features.items():
        for index, operand in enumerate(feature.operands):
            if operand in features and operand not in before:
                message = f"feature '{operand}' is declared below '{name}'"
                raise FeatureError(name, index, message, "move it up")
            _check_operand(name, feature, index, operand, before)
        before[name] = feature


def _check_operand(
    name: str, feature: Feature, index: int, operand: str, before: Features
) -> None:
    other = before.get(operand)
    if other is None:
        return
    kind = feature.kind
    if kind == "cross" and other.is_float:
        raise FeatureError(
            name,
            index,
            f"a cross is of keys and whole numbers, and '{operand}' has floats",
            "cross the buckets of the number",
        )
    if kind in ("buckets", "log1p", "standardize") and not other.is_float:
        raise FeatureError(
            name,
            index,
            f"'{kind}' is of numbers, and the values of '{operand}' are no quantities",
            f"name a column of numbers, or a feature of {' or '.join(FLOATS)}",
        )
    if kind in ("hash", *OF_TIMES):
        raise FeatureError(
            name, index, f"'{kind}' is of a column, and '{operand}' is a feature", None
        )


def source_columns(name: str, features: Features) -> tuple[str, ...]:
    """Return the columns of the source that a column is computed from.

    `features` are expanded. A column that is no feature is computed from itself.
    """
    if name not in features:
        return (name,)
    found: dict[str, None] = {}
    for operand in features[name].operands:
        # A feature is only computed from those before it.
        found.update(dict.fromkeys(source_columns(operand, features)))
    return tuple(found)


def may_read(wanted: str | Sequence[str], features: Features) -> list[Feature]:
    """Return the features that an input may read, without the columns of the source.

    A name or a glob of the input matches that of a feature, or the other way round.

    Args:
        wanted: the columns that the input reads.
        features: the features as they are declared.
    """
    patterns = [wanted] if isinstance(wanted, str) else wanted
    return [
        feature
        for name, feature in features.items()
        if any(
            pattern == name or fnmatchcase(pattern, name) or fnmatchcase(name, pattern)
            for pattern in patterns
        )
    ]
