"""Which columns of rows the inputs of an exported model read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from placer.build.plan import Plan
from placer.config.columns import is_glob, select_columns
from placer.config.sources import assign_columns
from placer.errors import DataError, PlacerError


def input_columns(
    plan: Plan, inputs: Iterable[str], folder: Path
) -> dict[str, list[str]]:
    """Return the names of the columns that each of these inputs reads, in order.

    A glob selects columns in the order of the file from which the model was trained: its
    header is read. The inputs of a `sklearn:` data set read columns of their own names:
    few users have a column that is called `data`.

    Args:
        plan: the plan of a build with a prediction.
        inputs: the names of the inputs.
        folder: the folder that paths of the spec are relative to.

    Raises:
        PlacerError: there is a glob, and that file cannot be read or has not as many
            columns as the input needs.
    """
    data = plan.prediction
    assert data is not None
    if data.parsed.kind == "sklearn":
        return {name: [name] for name in inputs}
    dtypes = {column.name: column.dtype for column in plan.columns}
    feeds = assign_columns(data.parsed, dtypes, data.columns)
    listed = {n: [feed] if isinstance(feed, str) else feed for n, feed in feeds.items()}
    listed = {name: listed[name] for name in inputs}
    has_globs = any(is_glob(each) for feed in listed.values() for each in feed)
    if not (has_globs and data.parsed.declaration.column_lists):
        return listed
    is_alike = plan.train.columns == data.columns
    is_table = plan.train.parsed.declaration.column_lists
    source = plan.train if is_alike and is_table else data
    from placer.readers.column_names import read_column_names  # it imports pyarrow

    columns = {column.name: column for column in plan.columns}
    try:
        names = read_column_names(source, folder)
        return {
            name: [*select_columns(source.parsed, columns[name], feed, names)]
            for name, feed in listed.items()
        }
    except DataError as error:
        raise PlacerError(
            f"the columns that prepare.py takes are not known: {error.message}",
            hint="a glob selects columns in the order of this file: put it there, or list"
            " the columns in the spec",
        ) from error
