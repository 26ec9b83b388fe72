"""Writes `tables.py` of an exported model, which looks up rows in Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.compiler.emit.code import Call, bracketed, literal
from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.serving.definitions import Copies, copies_of_placer
from placer.compiler.serving.imports import bound_names, import_lines
from placer.compiler.serving.lookups import Lookup
from placer.plan.plan import SparseTable
from placer.plan.settings.sparse.table import Always
from placer.tables.initial.draws import parameter_key

_FUNCTIONS = "placer.publishing.served"
_DRAWS = "placer.tables.initial.draws"
_IMPORTS = ("from pathlib import Path", "from typing import Any", "import numpy as np")
TABLES_WORDS = frozenset({"tables", *bound_names(_IMPORTS)})
"""The names that tables.py uses besides the arguments of the model."""


def file_of_table(name: str) -> str:
    """Return the name of the file of a table."""
    return f"{name}.parquet"


def write_tables_file(
    title: str,
    tables: Mapping[str, SparseTable],
    seed: int,
    inputs: Mapping[str, str],
    arguments: Sequence[str],
    lookups: Sequence[Lookup],
) -> str:
    """Return the text of tables.py.

    Args:
        title: the first line of its docstring.
        tables: the tables, by name.
        seed: the seed of the build.
        inputs: the name that `prepare.py` gives each input of the model.
        arguments: the names of inputs that the model takes unchanged.
        lookups: its lookups.
    """
    copies = copies_of_placer({"load_tables", "look_up", "tables", *inputs.values()})
    load = copies.add(_FUNCTIONS, "load_table")
    find = copies.add(_FUNCTIONS, "look_up_rows")
    table_type = copies.add(_FUNCTIONS, "Table")
    functions = {
        name: unique_name(f"absent_{name.replace('.', '_')}", copies.used, "_", first=2)
        for name in tables
    }
    absent = [
        line
        for name, table in tables.items()
        for line in _absent(functions[name], table, seed, copies)
    ]
    loaded = bracketed(
        "return {",
        [
            f"{literal(n)}: {load}(str(Path(folder) / {literal(file_of_table(n))}))"
            for n in tables
        ],
        "}",
        1,
    )
    results = [f"{literal(name)}: {name}" for name in arguments]
    body: list[str] = []
    for each in lookups:
        keys = inputs[each.input]
        call = Call(
            find,
            [f"tables[{literal(each.table)}]", keys, functions[each.table]],
            [each.rows],
        )
        body += [line.text for line in call.lines(1)]
        results.append(f"{literal(each.rows)}: {each.rows}")
        if each.present is not None:
            present = f"np.asarray({keys}) != {literal(each.padding)}"
            results.append(f"{literal(each.present)}: {present}")
    head = bracketed(
        "def look_up(",
        [f"tables: dict[str, {table_type}]", *(f"{n}: Any" for n in inputs.values())],
        ") -> dict[str, Any]:",
        0,
    )
    imports, definitions = copies.definitions()
    lines = [
        f'"""{title}',
        "",
        "    tables = load_tables()",
        "    outputs = model(params, **look_up(tables, **prepare(columns)))",
        "",
        "It needs only NumPy and pyarrow.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *import_lines([*imports, *_IMPORTS]),
        "",
        "def load_tables(",
        "    folder: str | Path = Path(__file__).parent,",
        f") -> dict[str, {table_type}]:",
        '    """Return the tables in a folder by name: their keys, and a row for'
        ' each key."""',
        *loaded,
        "",
        "",
        *head,
        '    """Return the arguments of `model` besides its parameters, with rows'
        " for keys.",
        "",
        "    A key that is not in a table reads the same value as in an evaluation.",
        '    """',
        *body,
        *bracketed("return {", results, "}", 1),
        *absent,
    ]
    text = "\n".join(lines)
    for definition in definitions:
        text += f"\n\n\n{definition}"
    return f"{text}\n"


def _absent(function: str, table: SparseTable, seed: int, copies: Copies) -> list[str]:
    """Return the lines of a function that returns rows for keys outside a table."""
    settings = table.settings
    form, values = settings.init
    if not isinstance(settings.admit, Always):
        result = [f"    return {literal(settings.default)}"]
    elif form == "constant":
        result = [f"    return {literal(values[0])}"]
    else:
        draw, rows = copies.add(_DRAWS, form), copies.add(_DRAWS, "draw_rows")
        words = [f"np.uint32({word})" for word in parameter_key(seed, table.name)]
        drawn = f"{draw}({', '.join(map(literal, values))})"
        items = [drawn, f"({', '.join(words)})", "keys", literal(settings.dim)]
        result = bracketed(f"return {rows}(", items, ")", 1)
    return [
        "",
        "",
        f"def {function}(keys: np.ndarray) -> Any:",
        f"    # Keys that are not in {literal(table.name)}",
        *result,
    ]
