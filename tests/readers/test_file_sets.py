"""Sources that are sets of files."""

from __future__ import annotations

import errno
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from placer.errors import DataError
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.sources import Source
from placer.plan.settings.data.window import Window
from placer.readers import Column, Order, ReadOptions, open_pieces, open_source
from placer.readers.file_sets import list_files
from placer.readers.windows import WindowReader
from placer.system.files.globs import matching_files, would_match

ID = Column("id", "int32", ())
X = Column("x", "float32", (2,))
FEEDS = {"id": "id", "x": ["a", "b"]}
FEEDS_OF = {"npz": {"id": "id", "x": "x"}}
DIGESTS = ReadOptions(with_digests=True)
PARTS = {"part-2": range(30), "part-10": range(30, 50), "day/part-1": range(50, 51)}
"""The rows of files; they are not in the order of their names as texts."""
ORDER = ("day/part-1", "part-2", "part-10")


def table_of(rows, **more):
    ids = np.array(rows)
    return pa.table({"id": ids, "a": ids * 0.5, "b": -ids * 1.0, **more})


def write(path, kind, table):
    path.parent.mkdir(exist_ok=True, parents=True)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=8)
    elif kind == "npz":
        columns = {name: table[name].to_numpy() for name in table.column_names}
        columns["x"] = np.stack([columns.pop("a"), columns.pop("b")], axis=1)
        np.savez(path, **columns)
    else:
        lines = [
            ",".join(map(str, row))
            for row in zip(*table.to_pydict().values(), strict=True)
        ]
        path.write_text("\n".join([",".join(table.column_names), *lines, ""]))


@pytest.fixture(params=["csv", "parquet", "npz"])
def clicks(request, tmp_path):
    """Return the settings of a set of files, and of one file with the same rows."""
    kind = request.param
    feeds = FEEDS_OF.get(kind, FEEDS)
    for name, rows in PARTS.items():
        write(tmp_path / f"clicks/{name}.{kind}", kind, table_of(rows))
    for name in (".part-3", "part-4"):  # hidden, or not finished
        path = tmp_path / f"clicks/{name}.{kind}"
        path.write_text("unreadable")
    path.rename(path.with_name(f"part-4.{kind}.tmp"))
    rows = [row for name in ORDER for row in PARTS[name]]
    write(tmp_path / f"one.{kind}", kind, table_of(rows))
    whole = Data(f"{kind}:clicks/**/*", columns=feeds)
    return whole, structs.replace(whole, source=f"{kind}:one.{kind}")


def test_the_rows_of_a_set_are_those_of_one_file(clicks, tmp_path):
    rows, expected = (open_source(d, [ID, X], tmp_path, DIGESTS) for d in clicks)
    assert rows.rows == expected.rows == 51
    found, others = (each.take(np.arange(51)) for each in (rows, expected))
    for name in others:
        assert np.array_equal(found[name], others[name])
    assert rows.digests().columns == expected.digests().columns


def test_a_window_reads_a_set_as_one_file(clicks, tmp_path):
    whole, one = clicks
    if whole.source.startswith("npz"):
        return
    sources = [open_pieces(data, [ID, X], tmp_path, DIGESTS) for data in (whole, one)]
    assert sources[0].digests().file is not None
    order = Order(51, 7, Window(20, 3), 3, "keep")
    # Rows come in other pieces, and thus in another order, but each once in an epoch.
    for source in sources:
        reader = WindowReader(order, source)
        taken = [
            reader.take(1, step, [(0, min(7, 51 - 7 * step))])
            for step in range(order.steps_per_epoch)
        ]
        ids = np.concatenate([each["id"] for each in taken])
        x = np.concatenate([each["x"] for each in taken])
        assert sorted(ids.tolist()) == [*range(51)]
        assert np.array_equal(x, np.stack([ids * 0.5, -ids * 1.0], axis=1))


def test_the_files_are_in_natural_order(clicks, tmp_path):
    whole, one = clicks
    kind = whole.parsed.kind
    found = list_files(whole.parsed, tmp_path)
    assert found == tuple(f"clicks/{name}.{kind}" for name in ORDER)
    absolute = Source.parse(f"{kind}:{tmp_path}/clicks/*")
    assert list_files(absolute, tmp_path)[0] == f"{tmp_path}/clicks/part-2.{kind}"
    # A list of paths comes before the files that are there.
    options = ReadOptions(files=found[1:])
    assert open_source(whole, [ID, X], tmp_path, options).rows == 50
    assert list_files(one.parsed, tmp_path) == (f"one.{kind}",)


def test_a_name_with_brackets_is_one_file(tmp_path):
    write(tmp_path / "part[1].csv", "csv", table_of(range(3)))
    write(tmp_path / "part1.csv", "csv", table_of(range(5)))
    assert open_source(Data("csv:part[1].csv"), [ID], tmp_path).rows == 3


def test_a_set_without_files_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"csv:days/\*: no file matches") as error:
        open_source(Data("csv:days/*"), [ID], tmp_path)
    assert error.value.hint == f"the folder '{tmp_path}/days' does not exist"


@pytest.mark.parametrize("opened", [open_source, open_pieces])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_other_columns_may_differ_but_not_those_of_inputs(tmp_path, kind, opened):
    more = pa.array(["t"] * 4)
    write(tmp_path / f"1.{kind}", kind, table_of(range(4), color=more))
    write(tmp_path / f"2.{kind}", kind, table_of(range(4, 8), I1=more, size=more))
    data = Data(f"{kind}:*.{kind}", columns=FEEDS)
    assert opened(data, [ID, X], tmp_path).rows == 8
    write(tmp_path / f"3.{kind}", kind, table_of(range(3)).drop(["b"]))
    with pytest.raises(DataError, match=f"{kind}:3.{kind} has no column 'b'"):
        opened(data, [ID, X], tmp_path)
    letters = structs.replace(data, columns={"id": "id", "x": "?"})
    other = table_of(range(3)).rename_columns(["id", "a", "c"])
    write(tmp_path / f"3.{kind}", kind, other)
    with pytest.raises(DataError, match=r"reads 'a', 'c', but 'a', 'b' of \w+:1"):
        opened(letters, [ID, X], tmp_path)


@pytest.mark.parametrize(
    ("kind", "opened"),
    [("parquet", open_source), ("parquet", open_pieces), ("npz", open_source)],
)
def test_columns_of_inputs_have_the_same_types(tmp_path, kind, opened):
    write(tmp_path / f"1.{kind}", kind, table_of(range(4)))
    other = table_of(range(4)).cast(
        pa.schema([("id", pa.int32()), ("a", pa.float64()), ("b", pa.float64())])
    )
    write(tmp_path / f"2.{kind}", kind, other)
    data = Data(f"{kind}:*.{kind}", columns=FEEDS_OF.get(kind, FEEDS))
    with pytest.raises(
        DataError, match=rf"2\.{kind}: column 'id' holds int32, but int64"
    ):
        opened(data, [ID, X], tmp_path)


def test_an_error_names_the_file_and_its_row(tmp_path):
    write(tmp_path / "1.csv", "csv", table_of(range(4)))
    (tmp_path / "2.csv").write_text("id,a,b\n7,1,1\n8,x,1\n")
    data = Data("csv:*.csv", columns=FEEDS)
    with pytest.raises(DataError, match=r"csv:2\.csv: line 3, column 'a'"):
        open_source(data, [ID, X], tmp_path)


def test_names_that_do_not_count(tmp_path):
    files = [
        "a/1.csv",
        "a/.2.csv",
        "a/3.csv.tmp",
        "b.tmp/4.csv",
        ".c/5.csv",
        "d/.e/6.csv",
        "d/f.tmp/7.csv",
        "d/g/8.csv",
        "h.csv/9.txt",  # in a folder that a glob of files matches
    ]
    for path in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    os.mkfifo(tmp_path / "a/10.csv")
    (tmp_path / "a/11.csv").symlink_to("1.csv")
    (tmp_path / "a/12.csv").symlink_to("lost.csv")
    (tmp_path / "a/13.csv").symlink_to("13.csv")
    (tmp_path / "d/up").symlink_to("..")  # a loop, which `**` does not enter
    (tmp_path / "link").symlink_to("a")
    for pattern, expected in {
        "**/*.csv": {"a/1.csv", "a/11.csv", "d/g/8.csv"},
        "**": {"a/1.csv", "a/11.csv", "d/g/8.csv", "h.csv/9.txt"},
        "d/**/**/*.csv": {"d/g/8.csv"},
        "*/*.csv": {"a/1.csv", "a/11.csv", "link/1.csv", "link/11.csv"},
        "./a//1*.csv": {"./a/1.csv", "./a/11.csv"},
        "a/[1-9].csv": {"a/1.csv"},
        ".c/*": {".c/5.csv"},  # the glob names the folder in full
        "b.tmp/*.csv": {"b.tmp/4.csv"},
        "*/up/a/1.*": {"d/up/a/1.csv"},
        ".c*/*": set(),
        "*.csv": set(),
        "*/": set(),
        "lost/*.csv": set(),
        "a/1.csv/*": set(),
    }.items():
        found = matching_files(pattern, tmp_path)
        assert found == expected, pattern
        would = {
            path for path in files if would_match(pattern, tmp_path, tmp_path / path)
        }
        found = {os.path.normpath(path) for path in found if "up" not in path}
        assert would == found.intersection(files), pattern


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(
        DataError, match=r"days' cannot be listed: Permission denied"
    ) as error:
        open_source(Data("csv:days/*"), [ID], tmp_path)
    assert error.value.hint == "the glob 'days/*' needs it"


def test_the_name_of_a_file_is_utf8(tmp_path):
    (tmp_path / os.fsdecode(b"b\xe4r.csv")).touch()
    with pytest.raises(DataError, match=r"the file 'b\\xe4r.csv' is not UTF-8"):
        open_source(Data("csv:*.csv"), [ID], tmp_path)
