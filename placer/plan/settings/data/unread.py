"""Finds features and column options that no input uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from placer.errors import nearest
from placer.plan.settings.data.cell_options import Cells
from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.features import Features
from placer.plan.settings.data.sources import ColumnMap
from placer.plan.settings.mistake import Mistake


def find_unread_feature(columns: ColumnMap, features: Features) -> Mistake | None:
    """Return a mistake for a feature that no input and no other feature reads, or None.

    Args:
        columns: the columns, features or globs that each input reads.
        features: the declared features.
    """
    read = _read(columns, features)
    # Features use only features above them, so nothing but an input can read the last.
    name = next((name for name in reversed(list(features)) if name not in read), None)
    if name is None:
        return None
    message = f"feature '{name}' has no effect: no input reads it"
    hint = f'write columns: {{INPUT: "{name}"}}, or leave the feature out'
    return Mistake((name,), message, hint, of_key=True)


def find_unread_option(
    form: Cells, columns: ColumnMap, features: Features, names: Sequence[str] | None
) -> Mistake | None:
    """Return a mistake for the first option of a column that no input reads, or None.

    Args:
        form: the options of a source.
        columns: the columns, features or globs that each input reads.
        features: the declared features. `missing_values` also applies to their source
            columns, and `missing` to their number and date columns. Other options do not.
        names: the columns of the source; None if unknown.
    """
    wanted = _wanted(columns)
    of_features = [*wanted, *_operands(columns, features)]
    numbers = {name: each for name, each in features.items() if not each.reads_text}
    for key, entries in form.patterns.items():
        read = wanted if key in ("vocabulary", "unknown") else of_features
        for entry in entries:
            if not any(_overlap(entry, each, names) for each in read):
                close = nearest(entry, _names_read(columns, features))
                hint = f'write columns: {{INPUT: "{entry}"}}, or leave the entry out'
                hint = f"did you mean '{close}'?" if close else hint
                return _without_effect(key, entry, "no input reads such a column", hint)
        if key != "missing":
            continue
        read = [*wanted, *_operands(columns, features, numbers)]
        for entry in entries:
            if not any(_overlap(entry, each, names) for each in read):
                hint = "leave it out: 'missing' works with numbers and dates only"
                return _without_effect(key, entry, _HASHED, hint)
    return None


_HASHED = "features only hash the column as text, and missing cells have their own key"


def _without_effect(key: str, entry: str, reason: str, hint: str) -> Mistake:
    message = f"'{entry}' of '{key}' has no effect: {reason}"
    return Mistake((key, entry), message, hint, of_key=True)


def _names_read(columns: ColumnMap, features: Features) -> list[str]:
    """Return the columns, features and globs that inputs read directly or indirectly."""
    return [*_wanted(columns), *_operands(columns, features)]


def _operands(
    columns: ColumnMap, features: Features, some: Features | None = None
) -> list[str]:
    """Return the operands of the features that inputs may read."""
    read = _read(columns, features)
    some = features if some is None else some
    return [each for name in read if name in some for each in some[name].operands]


def _wanted(columns: ColumnMap) -> list[str]:
    return [
        each
        for wanted in columns.values()
        for each in ([wanted] if isinstance(wanted, str) else wanted)
    ]


def _read(columns: ColumnMap, features: Features) -> set[str]:
    """Return the names of the features that inputs may read."""
    read = {name for name in features if _is_among(name, _wanted(columns))}
    for name in reversed(list(features)):
        if name in read:
            operands = features[name].operands
            read |= {other for other in features if _is_among(other, operands)}
    return read


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(_overlap(name, each, None) for each in patterns)


def _overlap(one: str, other: str, names: Sequence[str] | None) -> bool:
    """Whether two names or globs may mean the same column."""
    if one == other:
        return True
    if names is not None:
        return any(_matches(each, one) and _matches(each, other) for each in names)
    if is_glob(one) and is_glob(other):
        return True
    return fnmatchcase(one, other) or fnmatchcase(other, one)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)
