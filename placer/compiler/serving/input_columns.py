"""Finds the columns of rows that the inputs of an exported model read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from placer.errors import DataError, PlacerError
from placer.plan.plan import Plan
from placer.plan.settings.data.columns import in_natural_order, is_glob, select_columns
from placer.plan.settings.data.feature_columns import expand_features
from placer.plan.settings.data.features import COLUMN, Feature, Features
from placer.plan.settings.data.sources import assign_columns


class UnknownColumnsError(PlacerError):
    """The columns that a glob selects are unknown, because the file cannot be read."""


def input_columns(
    plan: Plan, inputs: Iterable[str], folder: Path
) -> tuple[dict[str, list[str]], dict[str, Feature]]:
    """Return the columns and features of each input, and the source's features.

    The columns are in order, and the features are expanded. A glob selects columns of
    the training file, whose header is read. The inputs of a `sklearn:` data set read
    columns of their own names, because few users have a column called `data`.

    Args:
        plan: the plan of a build with a prediction.
        inputs: the names of the inputs.
        folder: the folder that paths of data files are relative to.

    Raises:
        UnknownColumnsError: if a glob cannot be resolved, because the file cannot be read
            or lacks columns.
    """
    data = plan.prediction
    assert data is not None
    source, features = data.parsed, data.features or {}
    if source.kind == "sklearn":
        return {name: [name] for name in inputs}, {}
    dtypes = {column.name: column.dtype for column in plan.columns}
    # The spec may map columns to inputs that the graph does not use.
    mapping = {n: each for n, each in (data.columns or {}).items() if n in dtypes}
    feeds = assign_columns(source, dtypes, mapping)
    listed = {n: [feed] if isinstance(feed, str) else feed for n, feed in feeds.items()}
    listed = {name: listed[name] for name in inputs}
    patterns = [each for feed in listed.values() for each in feed]
    patterns += [
        each
        for feature, declared in features.items()
        if COLUMN in feature
        for each in declared.operands
    ]
    if not source.declaration.column_lists:
        return listed, {}
    if not any(map(is_glob, patterns)):
        names = _named_columns(features)
        return listed, expand_features(source.text, features, names, keeps_missing=True)
    columns = {column.name: column for column in plan.columns}
    try:
        names = _read_names(plan, folder)
        computed = expand_features(source.text, features, names, keeps_missing=True)
        selected = {
            name: [*select_columns(source, columns[name], feed, names, [*computed])]
            for name, feed in listed.items()
        }
    except DataError as error:
        raise UnknownColumnsError(
            f"the columns for prepare.py are unknown: {error.message}",
            hint="a glob selects columns of this file: put the file there, or list the"
            " columns in the spec",
        ) from error
    return selected, computed


def _read_names(plan: Plan, folder: Path) -> list[str]:
    """Return the columns of the training source, in natural order."""
    data = plan.prediction
    assert data is not None
    is_alike = (plan.train.columns, plan.train.features) == (
        data.columns,
        data.features,
    )
    is_table = plan.train.parsed.declaration.column_lists
    source = plan.train if is_alike and is_table else data
    if source.parsed.kind == "python":
        raise DataError(f"only the rows of {source.source} have their names")
    from placer.readers.column_names import read_column_names  # it imports pyarrow

    return in_natural_order(read_column_names(source, folder))


def _named_columns(features: Features) -> list[str]:
    """Return the columns that features without globs are computed from."""
    singles = {n: f for n, f in features.items() if not f.is_cross}
    names = [
        operand
        for feature in singles.values()
        for operand in feature.operands
        if operand not in features
    ]
    computed = expand_features("", singles, names, keeps_missing=True)
    for feature in features.values():
        names += [each for each in feature.operands if each not in computed]
    return [each for each in dict.fromkeys(names) if each not in features]
