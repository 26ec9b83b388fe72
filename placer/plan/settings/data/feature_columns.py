"""The features of a source by name, once its columns are known."""

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
        SourceError: a feature has the name of a column or of another feature, or a
            column that is not there, or crosses what has no key.
    """
    expanded: dict[str, Feature] = {}
    for name, feature in features.items():
        for own_name, single in _singles(
            source, name, feature, columns, expanded, keeps_missing
        ):
            if own_name in columns:
                raise SourceError(
                    ("features", name),
                    f"{source} has a column '{own_name}', and a feature has this name"
                    " too",
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
    """Yield the features that one declaration stands for, and their names."""
    singles: list[tuple[str, Feature]] = []
    for index, operand in enumerate(feature.operands):
        selected = _select(operand, columns, before)
        if (is_one := COLUMN not in name) and selected not in ([], [operand]):
            if not feature.is_cross and not keeps_missing:
                raise _operand_error(
                    name,
                    feature,
                    index,
                    f"'{name}' is one feature, and reads one column",
                    "write a * in its name for the name of each column:"
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
    """Check what is known of features without the columns of their source.

    Raises SourceError for one that is computed from a feature below it, or from one
    that has no values of its kind.
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
                f"a cross is of keys and whole numbers, and '{operand}' has floats"
            )
            hint = "cross the buckets of the number"
        case "numbers" if not other.is_float:
            message = f"'{kind}' is of numbers, and the values of '{operand}' are no quantities"
            floats = [name for name, each in KINDS.items() if each.gives == "floats"]
            hint = f"name a column of numbers, or a feature of {' or '.join(floats)}"
        case "a column":
            message = f"'{kind}' is of a column, and '{operand}' is a feature"
        case _:
            return
    raise _operand_error(name, feature, index, message, hint)


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
