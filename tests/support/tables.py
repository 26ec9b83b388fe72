"""The same table as a source of every kind, and as the columns of a service."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from placer.compiler.serving.prepare_file import write_prepare
from placer.plan.settings.data.cell_options import Cells, Csv
from placer.plan.settings.data.feature_columns import expand_features
from placer.plan.settings.data.source import RowSource
from placer.readers import ReadOptions, open_pieces, open_source


def write_table(folder, kind, columns):
    """Write columns of texts or Python values, or for `parquet` of Arrow arrays; return
    the text of the source."""
    rows = [*zip(*columns.values(), strict=True)]
    if kind == "csv":
        with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*columns], *rows])
        return "csv:t.csv"
    if kind == "parquet":
        pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=3)
        return "parquet:t.parquet"
    imports = "import datetime; from decimal import Decimal; import numpy as np"
    text = f"{imports}\nnan = float('nan')\n\ndef rows():\n    return ["
    text += ", ".join(repr(dict(zip(columns, row, strict=True))) for row in rows)
    (folder / "t.py").write_text(f"{text}]\n", encoding="utf-8")
    return "python:t:rows"


def write_rows(folder, columns):
    """Return the text of a `python:` source whose rows have these values themselves."""
    rows = [
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    (folder / "given.py").write_text(
        f"import support.tables\n\ndef rows():\n    return support.tables.GIVEN[{len(GIVEN)}]\n"
    )
    GIVEN.append(rows)
    return "python:given:rows"


GIVEN = []


def data_of(source, inputs, *, features=None, mapping=None, **options):
    """Return the settings of a source with options of its columns."""
    kind = source.partition(":")[0]
    form = (Csv if kind == "csv" else Cells)(**options)
    columns = mapping or {column.name: column.name for column in inputs}
    return RowSource(
        source=source,
        batch=2,
        remainder="keep",
        columns=columns,
        features=features,
        **{kind: form},
    )


def read_all(folder, data, inputs):
    """Return all rows of a source by input, as read into memory."""
    rows = open_source(data, inputs, folder, ReadOptions(with_digests=True))
    return rows.take(np.arange(rows.rows))


def read_pieces(folder, data, inputs):
    """Return all rows of a source by input, as read by pieces."""
    rows = open_pieces(data, inputs, folder)
    values = rows.columns.empty(rows.rows)
    for piece in range(len(rows.counts)):
        for batch in rows.reader.read(piece, 2):
            part = slice(batch.first, batch.first + len(batch))
            batch.convert({n: all_[part] for n, all_ in values.items()})
    return values


def prepare_of(data, inputs):
    """Return the function `prepare` of an exported model that takes these inputs."""
    key = repr((data, inputs))  # to write it takes a quarter of a second
    if key not in _PREPARED:
        _PREPARED[key] = _write_prepare(data, inputs)
    return _PREPARED[key]


_PREPARED = {}


def _write_prepare(data, inputs):
    names = {n: [each] if isinstance(each, str) else each for n, each in data.columns.items()}  # fmt: skip
    features = expand_features("", data.features or {}, [], keeps_missing=True)
    arguments = {column.name: column.name for column in inputs}
    text = write_prepare("t", data, inputs, arguments, names, features)
    assert all(len(line) <= 100 for line in text.splitlines())
    module = {"__name__": "prepare"}
    exec(text, module)
    return module["prepare"]
