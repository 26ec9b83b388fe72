"""Resolves the features of a source to its actual columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import structs

from placer.errors import did_you_mean
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.features import COLUMN, KINDS, Feature, Features
from placer.plan.settings.data.sources import SourceError


def expand_features(
    source: str,
    features: Features,
    columns: Sequence[str],
    *,
    keeps_missing: bool = False,
) -> dict[str, Feature]:
    """Return features by name, one for each matching column; a cross stays one feature.

    Args:
        source: the text of the source, for messages.
        features: the declared features. Globs select columns in the order of `columns`. A
            feature without a * in its name reads the column with exactly the given name.
        columns: the columns of the source, `in_natural_order` where order matters.
        keeps_missing: keep features whose column is missing; a glob without matches
            yields no feature.

    Raises:
        SourceError: a feature's name is taken, its column is missing, or it crosses
            floats.
    """
    expanded: dict[str, Feature] = {}
    for name, feature in features.items():
        for own_name, single in _singles(
            source, name, feature, columns, expanded, keeps_missing
        ):
            if own_name in columns:
                raise SourceError(
                    ("features", name),
                    f"'{own_name}' is both a feature and a column of {source}",
                    "rename the feature",
                    of_key=True,
                )
            if own_name in expanded:
                message = f"two features are named '{own_name}'"
                raise SourceError(("features", name), message, of_key=True)
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
    """Yield the name and feature of each column that a declaration covers."""
    singles: list[tuple[str, Feature]] = []
    for index, operand in enumerate(feature.operands):
        selected = _select(operand, columns, before)
        if (is_one := COLUMN not in name) and selected not in ([], [operand]):
            if not feature.is_cross and not keeps_missing:
                raise _operand_error(
                    name,
                    feature,
                    index,
                    f"'{name}' is one feature, but '{operand}' matches several columns",
                    "write a * in the feature's name for the column's name:"
                    f" '*_{feature.kind}'",
                )
            selected = []
        if not selected and not keeps_missing:
            message = f"{source} has no column '{operand}' for feature '{name}'"
            hint = did_you_mean(operand, [*columns, *before])
            raise _operand_error(name, feature, index, message, hint)
        if not selected and (is_one or not is_glob(operand)):
            selected = [operand]
        for each in selected:
            _check_operand(name, feature, index, each, before)
            if not feature.is_cross:
                changed = structs.replace(feature, **{feature.kind: each})
                singles.append((name.replace(COLUMN, each), changed))
    return [(name, feature)] if feature.is_cross else singles


def _select(operand: str, columns: Sequence[str], before: Features) -> Sequence[str]:
    if operand in columns or operand in before:
        return [operand]
    return [each for each in columns if is_glob(operand) and fnmatchcase(each, operand)]


def _operand_error(
    name: str, feature: Feature, index: int, message: str, hint: str | None
) -> SourceError:
    """Return the error for an operand of a feature."""
    path = feature.operand_path(index)
    return SourceError(("features", name, *path), message, hint)


def check_features(features: Features) -> None:
    """Check features before the columns of their source are known.

    Raises SourceError for a feature computed from a later feature, or from a feature with
    unsuitable values.
    """
    before: dict[str, Feature] = {}
    for name, feature in features.items():
        for index, operand in enumerate(feature.operands):
            if operand in features and operand not in before:
                message = f"feature '{operand}' is declared below '{name}'"
                raise _operand_error(name, feature, index, message, "move it up")
            _check_operand(name, feature, index, operand, before)
        before[name] = feature


def _check_operand(
    name: str, feature: Feature, index: int, operand: str, before: Features
) -> None:
    other = before.get(operand)
    if other is None:
        return
    kind, hint = feature.kind, None
    match feature.declaration.reads:
        case "parts" if other.is_float:
            message = (
                f"a cross takes keys and whole numbers, but '{operand}' has floats"
            )
            hint = "cross the buckets of the number"
        case "numbers" if not other.is_float:
            message = (
                f"'{kind}' takes quantities, but the values of '{operand}' are none"
            )
            floats = [name for name, each in KINDS.items() if each.gives == "floats"]
            hint = f"name a column of numbers, or a feature of {' or '.join(floats)}"
        case "a column":
            message = f"'{kind}' takes a column, but '{operand}' is a feature"
        case _:
            return
    raise _operand_error(name, feature, index, message, hint)


def source_columns(name: str, features: Features) -> tuple[str, ...]:
    """Return the source columns behind a column or an expanded feature.

    A plain column stands for itself.
    """
    if name not in features:
        return (name,)
    found: dict[str, None] = {}
    for operand in features[name].operands:
        # A feature can only use features above it, so this terminates.
        found.update(dict.fromkeys(source_columns(operand, features)))
    return tuple(found)


def may_read(wanted: str | Sequence[str], features: Features) -> list[Feature]:
    """Return the features that an input may read, before the source's columns are known.

    An input may read a feature if the name or glob of either one matches the other.

    Args:
        wanted: the columns that the input reads.
        features: the declared features.
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
