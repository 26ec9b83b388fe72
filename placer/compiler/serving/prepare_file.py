"""Writes prepare.py: from columns of rows to the arrays that a model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from placer.compiler.emit.code import Call, Expression, literal
from placer.compiler.serving.definitions import copies_of_placer
from placer.compiler.serving.feature_calls import (
    FEATURES,
    feature_calls,
    listed_markers,
    needed_features,
)
from placer.compiler.serving.imports import import_lines
from placer.plan.settings.data.cell_options import first_match
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.feature_columns import source_columns
from placer.plan.settings.data.features import Features
from placer.plan.settings.data.source import RowSource

_IMPORTS = (
    "from collections.abc import Mapping",
    "from typing import Any",
    "import numpy as np",
)
_MAY_HAVE_TEXT = ("parquet", "python")
"""The kinds of sources whose columns of numbers may hold texts or decimals."""
_MODULE = "placer.compiler.serving.prepare_functions"


def write_prepare(
    title: str,
    data: RowSource,
    columns: Sequence[Column],
    arguments: Mapping[str, str],
    feeds: Mapping[str, Sequence[str]],
    features: Features,
    *,
    looks_up: bool = False,
) -> str:
    """Return the text of prepare.py.

    Args:
        title: the first line of its docstring.
        data: how the rows of a prediction are read.
        columns: all inputs of the spec.
        arguments: the arguments of `model`, by the names of the inputs.
        feeds: the columns and features that each input reads, in order.
        features: the features of the source, expanded.
        looks_up: whether the arguments go to `tables.py`, which returns the arguments
            of the model.
    """
    given = "look_up(tables, **arguments)" if looks_up else "arguments"
    copies = copies_of_placer({"prepare", "columns"})
    check = copies.add(_MODULE, "check_rows")
    read = [name for names in feeds.values() for name in names]
    needed = needed_features(read, features)
    body: list[str] = []
    if needed:
        body = ["    columns = {**columns}"]
        if any(feature.has_key for feature in needed.values()):
            body.append("    keys: dict[Any, np.ndarray] = {}")
        calls = feature_calls(needed, data, copies)
        body += [line.text for call in calls for line in call.lines(1)]
    body.append("    arguments = {")
    for column in columns:
        if column.name in arguments:
            names = feeds[column.name]
            cells = [name for name in names if name not in needed]
            if len(names) != prod(column.shape):
                cells = []  # a column of lists, to which no option applies
            has_cells = cells and (data.parsed.kind == "csv" or _tables(cells, data))
            function = "parse_columns" if has_cells else "stack_columns"
            values = Expression("columns")
            if any(name in needed and needed[name].is_key for name in names):
                with_keys = copies.add(FEATURES, "with_keys")
                inner = map(Expression, ("columns", "keys", literal(column.dtype)))
                values = Expression(with_keys, "", tuple(inner))
            if cells and not has_cells and data.parsed.kind in _MAY_HAVE_TEXT:
                with_numbers = copies.add(_MODULE, "with_numbers")
                listed = tuple(Expression(literal(cell)) for cell in cells)
                selected = Expression("", "", listed, ("[", "]"))
                items = (values, selected, Expression(literal(column.dtype)))
                values = Expression(with_numbers, "", items)
            call = _call(
                copies.add(_MODULE, function), values, column, names, cells, data
            )
            lines = [line.text for line in call.lines(2)]
            lines[0] = f"        {literal(arguments[column.name])}: {lines[0].strip()}"
            body += [*lines[:-1], f"{lines[-1]},"]
    imports, definitions = copies.definitions()
    used = [c for name in read for c in source_columns(name, needed)]
    head = [
        f'"""{title}',
        "",
        "    arguments = prepare(columns)",
        f"    outputs = model(params, **{given})",
        "",
        "It needs only NumPy.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *import_lines([*imports, *_IMPORTS]),
        "",
        "",
        "def prepare(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:",
        '    """Return the arguments of `model` besides its parameters.',
        "",
        "    Args:",
        "        columns: a list or an array for each column, with a value for"
            " each row:",
        f"            {', '.join(map(literal, dict.fromkeys(used)))}.",
        "",
        "    Raises:",
        "        ValueError: if a column is missing, or a value does not fit.",
        '    """',
    ]  # fmt: skip
    text = "\n".join([*head, *body, "    }", f"    return {check}(arguments)"])
    for definition in definitions:
        text += f"\n\n\n{definition}"
    return f"{text}\n"


def _call(
    function: str,
    columns: Expression,
    column: Column,
    feeds: Sequence[str],
    cells: Sequence[str],
    data: RowSource,
) -> Call:
    """Return the call that returns an input; `cells` are the feeds except features."""
    arguments: list[str | Expression] = [
        columns,
        f"[{', '.join(map(literal, feeds))}]",
        literal(column.dtype),
        literal(column.shape),
    ]
    limits = data.ranges.get(column.name)
    if limits is not None:
        others = () if limits.padding is None else (limits.padding,)
        arguments.append(literal((limits.low, limits.high, *others)))
    tables = _tables(cells, data, with_globs=len(cells) == len(feeds))
    return Call(function, [*arguments, *tables])


def _tables(
    cells: Sequence[str], data: RowSource, *, with_globs: bool = True
) -> list[Expression]:
    """Return the tables of an input's columns: words, unknown words, missing cells."""
    form = data.csv or data.parquet or data.python
    if form is None:
        return []
    words = {
        key: value
        if isinstance(value, Mapping)
        else {w: i for i, w in enumerate(value)}
        for key, value in form.vocabulary.items()
    }
    tables = []
    for name, table in (
        ("words", words),
        ("unknown", form.unknown),
        ("missing", form.missing),
    ):
        used = {k: v for k, v in table.items() if _applies(k, cells)}
        # A glob may also match features, so use the names of columns.
        if not with_globs:
            matched = ((cell, first_match(used, cell)) for cell in cells)
            used = {cell: value for cell, value in matched if value is not None}
        if used:
            tables.append(_table(name, used))
    markers = {cell: listed_markers(form, cell) for cell in cells}
    if marked := {cell: listed for cell, listed in markers.items() if listed}:
        tables.append(_table("markers", marked))
    return tables


def _applies(key: str, cells: Sequence[str]) -> bool:
    """Return True if a key of `csv` or `parquet` matches a column of an input."""
    return any(key == cell or fnmatchcase(cell, key) for cell in cells)


def _table(name: str, table: Mapping[str, Any]) -> Expression:
    items = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = tuple(
                Expression(f"{literal(k)}: {literal(v)}") for k, v in value.items()
            )
            items.append(Expression(f"{literal(key)}: ", "", inner, ("{", "}")))
        else:
            items.append(Expression(f"{literal(key)}: {literal(value)}"))
    return Expression(f"{name}=", "", tuple(items), ("{", "}"))
