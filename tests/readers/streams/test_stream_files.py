"""Streams of real files: their facts, names that count, and files that cannot be trained."""

from __future__ import annotations

import errno
import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from placer.checkpoint.manifest import StreamPosition
from placer.errors import DataError
from placer.plan.settings.data import sources
from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.stream import Stream
from placer.plan.settings.data.stream_pass import PassFile, StreamPass
from placer.readers import Column, ReadOptions, open_pieces, open_source
from placer.readers.streams import (
    FileStream,
    changed_text,
    check_files,
    file_stream,
    late_text,
)
from placer.readers.streams.names import in_the_form_of

INPUTS = [Column("id", "int32", ()), Column("x", "float32", (2,))]
FEEDS = {"id": "id", "x": ["a", "b"]}
KINDS = [name for name, kind in sources.KINDS.items() if kind.is_file]
TYPES = {
    "csv": {"id": "", "a": "", "b": ""},
    "parquet": {"id": "int64", "a": "double", "b": "double"},
    "npz": {"id": "int64", "x": "float64"},
}


def write(path, rows, kind=None, **more):
    """Write a file whose rows have the ids [0, rows)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.arange(rows)
    columns = {"id": ids, "a": ids * 0.5, "b": -ids * 1.0} | more
    kind = kind or path.suffix[1:]
    if kind == "parquet":
        pq.write_table(pa.table(columns), path, row_group_size=8)
    elif kind == "npz":
        np.savez(path, id=ids, x=np.stack([columns["a"], columns["b"]], axis=1))
    else:
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *lines, ""]))


def settings(kind, *, files=1, batch=4, **more):
    feeds = {"id": "id", "x": "x"} if kind == "npz" else FEEDS
    stream = Stream(files=files) if isinstance(files, int) else Stream(folder=files)
    defaults = {"columns": feeds, "stream": stream, "remainder": "drop"}
    more = {"source": f"{kind}:clicks/*", "batch": batch} | defaults | more
    return RowSource(**more)


def stream_of(data, folder, trained=(), last="", *, earlier=(), **more):
    current = StreamPass(1, tuple(earlier))
    position = StreamPosition(current, 1, dict(trained), last, 0, 0)
    return FileStream(data, INPUTS, folder, position, **more)


def paths(stream_pass):
    return [file.path for file in stream_pass.files]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_announces_the_facts_of_its_files(tmp_path, kind):
    for name, rows in (("9", 5), ("10", 1), ("11", 2), ("12", 4)):
        write(tmp_path / f"clicks/{name}.{kind}", rows)
    data = settings(kind)
    stream = stream_of(data, tmp_path)
    first, second = stream.next_pass(1), stream.next_pass(2)
    assert paths(first) == [f"clicks/9.{kind}"]
    # Further files fill a batch.
    assert paths(second) == [f"clicks/{name}.{kind}" for name in (10, 11, 12)]
    assert [file.rows for file in second.files] == [1, 2, 4]
    assert second.rows == 7
    assert stream.next_pass(3) is None
    assert not stream.is_last()
    for file in (*first.files, *second.files):
        assert file.size == (tmp_path / file.path).stat().st_size
        assert file.columns == TYPES[kind]
        options = ReadOptions(files=(file.path,))
        assert open_source(data, INPUTS, tmp_path, options).rows == file.rows
    assert stream.last == f"clicks/12.{kind}"
    for each in (first, second):
        check_files(data, INPUTS, tmp_path, each)
        one = structs.replace(data, columns={"id": "id"})
        check_files(one, INPUTS[:1], tmp_path, each)


def test_rows_of_csv_files_are_those_of_readers(tmp_path):
    data = settings("csv", batch=1, csv=Csv(comment="#"))
    (tmp_path / "clicks").mkdir()
    text = b'# rows\n\nid,a,b,name\n1,2,3,"x\n# y"\n\n# more\n 4 ,5,6,z\r\n   \n7,8,9,'
    (tmp_path / "clicks/1.csv").write_bytes(text)
    (tmp_path / "clicks/2.csv.gz").write_bytes(gzip.compress(text))
    stream = stream_of(data, tmp_path)
    for number in (1, 2):
        (file,) = stream.next_pass(number).files
        options = ReadOptions(files=(file.path,))
        assert file.rows == open_source(data, INPUTS, tmp_path, options).rows == 3
        if number == 1:
            assert open_pieces(data, INPUTS, tmp_path, options).rows == 3


def test_a_folder_counts_once_it_is_complete(tmp_path):
    data = settings("csv", files="DONE.csv", source="csv:clicks/*/*.csv")
    for path in ("9/b.csv", "9/a.csv", "9/_c.csv", "10/a.csv", "10/.b.csv", "11/a.csv"):
        write(tmp_path / f"clicks/{path}", 2)
    stream = stream_of(data, tmp_path)
    assert stream.next_pass(1) is None
    for day in ("9", "10", "11"):
        (tmp_path / f"clicks/{day}/DONE.csv").touch()
    first = stream.next_pass(1)
    assert paths(first) == ["clicks/9/a.csv", "clicks/9/b.csv"]
    # A whole folder more fills the batch.
    second = stream.next_pass(2)
    assert paths(second) == ["clicks/10/a.csv", "clicks/11/a.csv"]
    write(tmp_path / "clicks/9/d.csv", 4)
    assert stream.next_pass(3) is None
    assert stream.late() == ("clicks/9/d.csv",)
    assert stream.late() == ()


def test_late_and_changed_files_are_named_once(tmp_path):
    for name in ("2", "4"):
        write(tmp_path / f"clicks/{name}.csv", 4)
    data = settings("csv")
    stream = stream_of(data, tmp_path)
    assert stream.next_pass(1)
    second = stream.next_pass(2)
    write(tmp_path / "clicks/4.csv", 5)
    assert stream.next_pass(3) is None
    assert stream.changed() == ()  # its readers compare it
    stream.end(second)
    write(tmp_path / "clicks/3.csv", 4)
    (tmp_path / "clicks/2.csv").unlink()
    for again in (False, True):
        assert stream.next_pass(3) is None
        assert stream.late() == (() if again else ("clicks/3.csv",))
        assert stream.changed() == (() if again else ("clicks/4.csv",))
    # So does the next command, which can train late files.
    late = structs.replace(data, stream=Stream(files=1, late="train"))
    stream = stream_of(late, tmp_path, stream.trained, stream.last)
    third = stream.next_pass(3)
    assert third.is_late
    assert paths(third) == ["clicks/3.csv"]
    assert stream.late() == ("clicks/3.csv",)
    assert stream.changed() == ("clicks/4.csv",)
    assert stream.last == "clicks/4.csv"
    assert {*stream.trained} == {f"clicks/{name}.csv" for name in (2, 3, 4)}
    one, five = ("3",), tuple("56789")
    assert late_text(data, one) == "csv:3 is late; it is not trained"
    assert late_text(late, five) == (
        "csv:5, csv:6, csv:7 and 2 more are late; they are the next pass once they fill a batch"
    )
    assert changed_text(data, one) == "csv:3 has changed after it was trained"


def test_an_announced_pass_counts_as_trained(tmp_path):
    for name in ("1", "2"):
        write(tmp_path / f"clicks/{name}.csv", 4)
    data = settings("csv")
    first = stream_of(data, tmp_path).next_pass(1)
    stream = stream_of(data, tmp_path, passes_left=2)
    stream.take(first)
    assert not stream.is_last()
    assert paths(stream.next_pass(2)) == ["clicks/2.csv"]
    assert stream.is_last()
    write(tmp_path / "clicks/3.csv", 4)
    assert stream.next_pass(3) is None


def spoil(path, how):
    """Make a file unusable, and return the message of the error that it causes."""
    kind, content = path.suffix[1:], path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
        return {
            "csv": "is empty",
            "parquet": "has no footer: it is not complete",
            "npz": "is not an npz file",
        }[kind]
    if how == "half written":
        path.write_bytes(content[: content.rindex(b",") if kind == "csv" else -9])
        return {
            "csv": ": line 5 has 2 cells, but the file has 3 columns",
            "parquet": "has no footer: it is not complete",
            "npz": "cannot be read: File is not a zip file",
        }[kind]
    write(path, 4, a=[*"abcd"])
    return ": column 'a' holds string, but double in parquet:clicks/1.parquet"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["empty", "half written", "types"])
def test_a_bad_file_is_named_until_it_is_replaced_or_hidden(tmp_path, kind, how):
    if how == "types" and kind != "parquet":
        return
    for name in ("1", "2", "3"):
        write(tmp_path / f"clicks/{name}.{kind}", 4)
    bad = tmp_path / f"clicks/2.{kind}"
    message = spoil(bad, how)
    data = settings(kind)
    stream = stream_of(data, tmp_path, until="now")
    first = stream.next_pass(1)
    assert not stream.is_last()
    for again in (stream, stream_of(data, tmp_path, stream.trained, stream.last)):
        if again is not stream and how == "types":
            again = stream_of(
                data, tmp_path, stream.trained, stream.last, earlier=first.files
            )
        with pytest.raises(DataError) as error:
            again.next_pass(2)
        assert str(error.value).startswith(f"{kind}:clicks/2.{kind}")
        assert message in error.value.message
        assert error.value.hint
    if how == "empty":
        write(bad, 6)
        assert paths(stream.next_pass(2)) == [f"clicks/2.{kind}"]
        assert not stream.is_last()
    bad.rename(bad.with_name(f".2.{kind}"))
    assert paths(stream.next_pass(2)) == [f"clicks/3.{kind}"]
    assert stream.is_last()


def test_a_file_without_rows_counts(tmp_path):
    for kind in ("csv", "parquet"):
        for name, rows in (("1", 0), ("2", 4)):
            write(tmp_path / f"{kind}/{name}.{kind}", rows)
        data = settings(kind, source=f"{kind}:{kind}/*")
        first = stream_of(data, tmp_path).next_pass(1)
        assert [file.rows for file in first.files] == [0, 4]


def test_inputs_read_the_same_columns_in_all_passes(tmp_path):
    write(tmp_path / "clicks/1.csv", 4)
    write(tmp_path / "clicks/2.csv", 4, color=[*"abcd"])  # which no input reads
    (tmp_path / "clicks/3.csv").write_text("id,a,c\n1,2,3\n")
    data = settings("csv", columns={"id": "id", "x": "?"}, batch=1)
    stream = stream_of(data, tmp_path)
    assert stream.next_pass(1)
    assert stream.next_pass(2)
    with pytest.raises(DataError) as error:
        stream.next_pass(3)
    assert error.value.message == (
        "csv:clicks/3.csv: the inputs read the columns 'id', 'a', 'c', but 'id', 'a', 'b'"
        " of csv:clicks/1.csv"
    )


def test_a_file_without_permission_is_named(tmp_path, monkeypatch):
    write(tmp_path / "clicks/1.csv", 4)
    stream, opened = stream_of(settings("csv"), tmp_path), os.open

    def refuse(path, *more):
        if str(path).endswith("1.csv"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, *more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        DataError, match=r"csv:clicks/1\.csv cannot be read: Permission denied"
    ) as error:
        stream.next_pass(1)
    assert error.value.hint.startswith("give the user of this process permission")


def test_a_file_that_vanishes_is_not_chosen(tmp_path, monkeypatch):
    for name in ("1", "2"):
        write(tmp_path / f"clicks/{name}.csv", 4)
    (tmp_path / "clicks/0.csv").mkdir()  # folders do not count
    read = file_stream.read_facts

    def lose(request):
        (tmp_path / "clicks/1.csv").unlink(missing_ok=True)
        return read(request)

    monkeypatch.setattr(file_stream, "read_facts", lose)
    stream = stream_of(settings("csv"), tmp_path)
    assert paths(stream.next_pass(1)) == ["clicks/2.csv"]
    assert stream.next_pass(2) is None


def test_a_file_that_grows_while_its_facts_are_read_is_an_error(tmp_path):
    write(tmp_path / "clicks/1.csv", 4)

    def grow(rows):
        if rows == 4:
            with (tmp_path / "clicks/1.csv").open("a") as file:
                file.write("7,8,9\n")

    stream = stream_of(settings("csv"), tmp_path, report=grow)
    with pytest.raises(DataError, match=r"1\.csv has changed while it was read"):
        stream.next_pass(1)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_compare_the_files_of_a_pass(tmp_path, kind):
    path = tmp_path / f"clicks/1.{kind}"
    write(path, 4)
    data = settings(kind)
    announced = stream_of(data, tmp_path).next_pass(7)

    def why():
        with pytest.raises(DataError) as error:
            check_files(data, INPUTS, tmp_path, announced)
        assert error.value.message.startswith(f"{kind}:clicks/1.{kind}")
        return error.value.message

    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    size = f"it has {len(content) + 1:,} bytes, not {len(content):,}"
    assert why().endswith(f"has changed since it was announced for pass 7: {size}")
    path.write_bytes(content[:-2] + b"1" + content[-1:])
    assert why().endswith("it has the same size, but other bytes")
    path.write_bytes(content)
    check_files(data, INPUTS, tmp_path, announced)
    (file,) = announced.files
    other = structs.replace(file, columns={**file.columns, "id": "int8"})
    announced = StreamPass(7, (other,))
    assert why().endswith("the inputs read other columns, such as 'id'")
    path.unlink()
    assert why().endswith("there is no such file")


def test_a_command_without_a_pass_says_why(tmp_path):
    data, marked = settings("csv"), settings("csv", files="DONE")

    def reason(data):
        stream = stream_of(data, tmp_path, until="now")
        return stream.next_pass(1), *stream.why_no_pass()

    assert reason(data) == (None, f"no file matches {data.source}", False)
    write(tmp_path / "clicks/1.csv", 1)
    assert reason(data) == (
        None,
        f"the files of {data.source} are not a whole pass yet",
        True,
    )
    why = f"files match {data.source}, but none of their folders has 'DONE'"
    assert reason(marked) == (None, why, False)
    write(tmp_path / "clicks/2.csv", 8)
    chosen, why, is_normal = reason(data)
    assert paths(chosen) == ["clicks/1.csv", "clicks/2.csv"]
    assert why == "all files that 'until' (--until) allows are trained"
    assert is_normal
    whole = "files after 'clicks/2.csv' are not a whole pass yet"
    for number, why in (
        (3, "the file after 'clicks/2.csv' is not a whole pass yet"),
        (4, f"the 2 {whole}"),
    ):
        write(tmp_path / f"clicks/{number}.csv", 1)
        later = stream_of(data, tmp_path, until="now")
        later.take(chosen)
        assert later.why_no_pass() == (why, True)


def test_a_trained_file_has_the_form_of_the_glob(tmp_path):
    def form_of(pattern, path):
        return in_the_form_of(settings("csv", source=f"csv:{pattern}"), tmp_path, path)

    for pattern in ("clicks/*.csv", "./clicks/*.csv", f"{tmp_path}/clicks/*.csv"):
        for path in ("clicks/1.csv", "./clicks/1.csv", f"{tmp_path}/clicks/1.csv"):
            assert form_of(pattern, path) == pattern.replace("*", "1")
        assert form_of(pattern, "1.csv") is None
    assert form_of("**/*.csv", "a/b/1.csv") == "a/b/1.csv"


@pytest.mark.parametrize(
    ("source", "marker", "until", "ends"),
    [
        ("clicks/*.csv", None, "clicks/3.csv", "clicks/3.csv"),
        ("clicks/*.csv", None, "3.csv", "clicks/3.csv"),
        ("clicks/*.csv", None, "2b.csv", "clicks/3.csv"),  # or the first one after it
        ("./clicks/*.csv", None, "clicks/3.csv", "./clicks/3.csv"),
        ("{}/clicks/*.csv", None, "clicks/3.csv", "{}/clicks/3.csv"),
        ("clicks/*.csv", None, "{}/clicks/3.csv", "clicks/3.csv"),
        ("days/*/*.csv", None, "9/2.csv", "days/9/2.csv"),
        ("days/*/*.csv", None, "2.csv", "days/9/2.csv"),  # the first one of this name
        ("days/**/*.csv", None, "days/9/2.csv", "days/9/2.csv"),
        ("days/**/*.csv", None, "2.csv", "days/9/2.csv"),
        ("days/*/*.csv", "DONE", "9", "days/9/2.csv"),
        ("days/*/*.csv", "DONE", "days/9", "days/9/2.csv"),
        ("days/**/*.csv", "DONE", "9", "days/9/2.csv"),
        ("days/[0-9]*/[0-9].csv", "DONE", "9b", "days/10/2.csv"),
    ],
)
def test_until_names_the_last_pass(tmp_path, source, marker, until, ends):
    for path in (
        *(f"clicks/{name}.csv" for name in range(1, 5)),
        *(f"days/{day}/{hour}.csv" for day in (9, 10, 11) for hour in (1, 2)),
    ):
        write(tmp_path / path, 4 if marker is None or "1.csv" in path else 0)
    for day in (9, 10, 11):
        (tmp_path / f"days/{day}/DONE").touch()
    source = source.format(tmp_path)
    data = settings("csv", files=marker or 1, source=f"csv:{source}")
    stream = stream_of(data, tmp_path, until=until.format(tmp_path))
    chosen = [stream.next_pass(1)]
    while not stream.is_last():
        chosen.append(stream.next_pass(len(chosen) + 1))
        assert chosen[-1] is not None
    assert chosen[-1].files[-1].path == ends.format(tmp_path)
    assert stream.next_pass(len(chosen)) is None
    if not until.endswith("b") and "2b" not in until:
        # The same command has nothing to do, unless a name may come again.
        before = stream.trained, stream.last
        again = stream_of(data, tmp_path, *before, until=until.format(tmp_path))
        assert again.is_last() == (until != "2.csv")


@pytest.mark.parametrize(
    ("source", "marker", "until", "message"),
    [
        ("clicks/*.csv", None, "3", "names no file of csv:clicks/*.csv: '3'"),
        ("clicks/*.csv", None, "days/3.csv", "names no file"),
        ("clicks/*.csv", None, "clicks/.3.csv", "names no file"),
        ("*/*.csv", "DONE", "clicks/3.csv", "names no folder of csv:*/*.csv"),
        ("clicks/*.csv", None, "1.csv", "comes before 'clicks/2.csv'"),
    ],
)
def test_until_must_be_able_to_come(tmp_path, source, marker, until, message):
    data = settings("csv", files=marker or 1, source=f"csv:{source}")
    with pytest.raises(DataError) as error:
        stream_of(data, tmp_path, {"clicks/2.csv": 1}, "clicks/2.csv", until=until)
    assert error.value.message.startswith("'until' (--until) names ")
    assert message in error.value.message
    assert error.value.hint


def test_facts_are_read_once(tmp_path, monkeypatch):
    read, asked = file_stream.read_facts, []

    def count(request):
        asked.append(request.source.path)
        return read(request)

    monkeypatch.setattr(file_stream, "read_facts", count)
    for name in ("1", "2"):
        write(tmp_path / f"clicks/{name}.csv", 1)
    stream = stream_of(settings("csv"), tmp_path)
    assert stream.next_pass(1) is None
    assert stream.next_pass(1) is None
    assert stream.listing_seconds > 0
    write(tmp_path / "clicks/3.csv", 1)
    write(tmp_path / "clicks/2.csv", 2)  # another file of this name
    assert isinstance(stream.next_pass(1).files[0], PassFile)
    assert asked == [f"clicks/{name}.csv" for name in (1, 2, 2, 3)]
