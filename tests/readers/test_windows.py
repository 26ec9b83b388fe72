"""Sources that are read by pieces, through windows: the rows, their order, and errors."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from inspect import isgenerator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.dealt_rows import dealt_rows

from placer.errors import DataError
from placer.place.layouts.partition import RowShard
from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.source import Data, RowSource
from placer.plan.settings.data.window import Window
from placer.readers import Column, Order, ReadOptions, Rows, open_pieces, open_source
from placer.readers.deal import Deal
from placer.readers.window_advice import Cost, advise, advise_window
from placer.readers.windows import WindowReader
from placer.runtime.batches.batches import Batches

OPTIONS = ReadOptions()
ALL = RowShard((0,), 1)
ID = Column("id", "int32", ())
X = Column("x", "float32", (2,))
FEEDS = {"id": "id", "x": ["a", "b"]}


def write_parquet(folder, rows, group):
    ids = np.arange(rows)
    table = pa.table({"id": ids, "a": ids * 0.5, "unused": ["t"] * rows, "b": -ids})
    pq.write_table(table, folder / "rows.parquet", row_group_size=group)
    return Data("parquet:rows.parquet", columns=FEEDS)


def write_csv(folder, rows, pad=300):
    lines = [f'{i},{i * 0.5},"{"t" * pad},\n",{-i}\n' for i in range(rows)]
    lines[rows // 2 : rows // 2] = ["\n", "  \r\n"]
    (folder / "rows.csv").write_text("id,a,unused,b\n" + "".join(lines), newline="")
    return Data("csv:rows.csv", columns=FEEDS)


def open_ids(data, folder, options=OPTIONS):
    """Open a source of which only `id` is read."""
    return open_pieces(structs.replace(data, columns=None), [ID], folder, options)


def order_of(rows, batch=16, window=80, lanes=4, remainder="keep"):
    return Order(rows, batch, Window(window, lanes), 3, remainder)


def batches_of(order, source, shard=ALL, parts=1, start=(1, 0), epochs=2):
    """Return (epoch, step, microbatches) of the batches from a position on."""
    batches = Batches(order, source, order.steps_per_epoch * epochs)
    position, taken = start, []
    while position is not None:
        each = [
            batches.take(position, shard, part if parts > 1 else None, parts)
            for part in range(parts)
        ]
        taken.append((*position, each))
        position = batches.passes.following(position)
    batches.close()
    return taken


@pytest.fixture(params=["parquet", "parquet of one group", "csv"])
def source(request, tmp_path):
    if request.param == "csv":
        data = write_csv(tmp_path, 2000)
    else:
        data = write_parquet(tmp_path, 2000, 2000 if "one" in request.param else 90)
    return data, open_pieces(data, [ID, X], tmp_path), tmp_path


def test_the_rows_are_those_of_the_deal(source):
    _, rows, _ = source
    assert rows.rows == 2000
    assert len(rows.counts) in (1, 3, 23)
    order = order_of(2000, batch=48, window=320)
    deal = Deal(order, rows.counts)
    taken = batches_of(order, rows)
    assert len(taken) == 2 * 42
    for epoch, step, ((batch),) in taken:
        ids = dealt_rows(deal, epoch, step)
        np.testing.assert_array_equal(batch["id"], ids)
        np.testing.assert_array_equal(batch["x"], np.stack([ids * 0.5, -ids], 1))
        assert batch["id"].dtype == np.int32
        assert batch["x"].dtype == np.float32
    for epoch in (1, 2):
        ids = np.concatenate([b["id"] for e, _, (b,) in taken if e == epoch])
        np.testing.assert_array_equal(np.sort(ids), np.arange(2000))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [1, 2])
def test_workers_divide_the_batches(workers, parts, source):
    _, rows, _ = source
    order = order_of(2000, batch=48)
    whole = batches_of(order, rows, parts=parts, epochs=1)
    shares = [
        batches_of(order, rows, RowShard((i,), workers), parts, epochs=1)
        for i in range(workers)
    ]
    for expected, *own in zip(whole, *shares, strict=True):
        for part in range(parts):
            joined = np.concatenate([each[2][part]["id"] for each in own])
            np.testing.assert_array_equal(joined, expected[2][part]["id"])


def test_a_heter_node_has_the_rows_of_its_workers(source):
    _, rows, _ = source
    order = order_of(2000, batch=48)
    whole = batches_of(order, rows, epochs=1)
    shard = RowShard((1, 3), 4)
    for (*_, (batch,)), (*_, (own,)) in zip(
        whole, batches_of(order, rows, shard, epochs=1), strict=True
    ):
        ranges = shard.ranges(len(batch["id"]))
        expected = np.concatenate([batch["id"][a:b] for a, b in ranges])
        np.testing.assert_array_equal(own["id"], expected)


class Counting:
    """Notes which pieces are read."""

    def __init__(self, reader):
        self.reader, self.pieces = reader, []

    def read(self, piece, rows):
        self.pieces.append(piece)
        return self.reader.read(piece, rows)


def counted(rows):
    counting = Counting(rows.reader)
    return replace(rows, reader=counting), counting


def test_a_run_continues_at_any_step(source):
    _, rows, _ = source
    order = order_of(2000, batch=48)
    whole = batches_of(order, rows)
    for at in (1, 17, 41, 42, 60):
        resumed = batches_of(order, rows, start=whole[at][:2])
        assert len(resumed) == len(whole) - at
        for (_, _, (before,)), (_, _, (after,)) in zip(
            whole[at : at + 6], resumed, strict=False
        ):
            np.testing.assert_array_equal(before["id"], after["id"])


@pytest.mark.parametrize("window", [80, 4000])
def test_every_evaluation_has_the_same_rows(window, source):
    """Each has the steps of epoch 1, also if a lane has a single window."""
    _, rows, _ = source
    order = order_of(2000, batch=48, window=window)
    batches = Batches(order, rows, order.steps_per_epoch)
    first, second = (
        [batches.take((1, step), ALL, None, 1)["id"] for step in range(42)]
        for _ in range(2)
    )
    batches.close()
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(second))


def test_pieces_before_a_step_are_not_read(tmp_path):
    data = write_parquet(tmp_path, 2000, 20)
    rows, counting = counted(open_ids(data, tmp_path))
    order = order_of(2000)
    WindowReader(order, rows).take(1, 110, [(0, 16)])
    # Of each lane the pieces of its window: 20 rows are in at most two.
    assert 4 <= len(counting.pieces) <= 8


def test_a_node_reads_only_the_lanes_that_it_needs(tmp_path):
    data = write_parquet(tmp_path, 2000, 20)
    rows, counting = counted(open_ids(data, tmp_path))
    batches_of(order_of(2000, remainder="drop"), rows, RowShard((1,), 4), epochs=1)
    assert 25 <= len(counting.pieces) <= 27  # a quarter, and those cut between lanes
    assert len(set(counting.pieces)) == len(counting.pieces)


def test_the_rows_in_memory_are_those_of_the_windows(tmp_path):
    data = write_parquet(tmp_path, 20_000, 5000)
    reader = WindowReader(order_of(20_000), open_ids(data, tmp_path))
    for step in range(200):
        reader.take(1, step, [(0, 16)])
        held = [len(lane._values.get("id", ())) for lane in reader._lanes.values()]
        assert len(held) == 4
        assert max(held) <= 20


def test_nothing_is_held_after_an_epoch(source):
    """An evaluation may be followed by many steps."""
    _, rows, _ = source
    order = order_of(2000)
    reader = WindowReader(order, rows)
    for step in range(order.steps_per_epoch):
        reader.take(1, step, [(0, order.batch_size(step))])
    for lane in reader._lanes.values():
        assert not lane._values
        assert lane._rest is None
        assert not isgenerator(lane._batches)  # which has a piece open


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_reading_by_pieces_has_the_rows_of_reading_all(form, tmp_path):
    if form == "csv":
        data = write_csv(tmp_path, 700, pad=2000)
    else:
        data = write_parquet(tmp_path, 700, 64)
    whole: Rows = open_source(data, [ID, X], tmp_path)
    rows = open_pieces(data, [ID, X], tmp_path)
    assert len(rows.counts) > 4
    order = Order(700, 700, Window(1, 1), 0, "keep")
    batch = WindowReader(order, rows).take(1, 0, [(0, 700)])
    expected = whole.take(dealt_rows(Deal(order, rows.counts), 1, 0))
    for name in ("id", "x"):
        np.testing.assert_array_equal(batch[name], expected[name])


CELLS = st.sampled_from(["1", "22", '"3"', '"4\n"', '" 5,\r\n\n"', '"6""\n"', " 7"])


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=30),
    st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n", "\r\n\t\r\n"]),
    st.booleans(),
    st.integers(1, 40),
    st.sampled_from(["", "\ufeff"]),
)
def test_the_pieces_of_a_csv_file_have_all_its_rows(
    tmp_path_factory, cells, end, ends, nbytes, mark
):
    folder = tmp_path_factory.mktemp("pieces")
    text = mark + end.join(["t,n", *(f"{a},{i}" for i, (a, _) in enumerate(cells))])
    (folder / "rows.csv").write_text(text + end * ends, encoding="utf-8", newline="")
    number = Column("n", "int32", ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("placer.readers.csv_pieces.PIECE_NBYTES", nbytes)
        rows = open_pieces(Data("csv:rows.csv"), [number], folder)
    assert rows.rows == len(cells)
    order = Order(rows.rows, rows.rows, Window(1, 1), 0, "keep")
    batch = WindowReader(order, rows).take(1, 0, [(0, rows.rows)])
    assert sorted(batch["n"].tolist()) == list(range(len(cells)))


def test_a_csv_file_of_one_column_has_rows_of_blanks(tmp_path):
    (tmp_path / "rows.csv").write_text("n\n1\n\n2\n \n3")
    data = Data("csv:rows.csv", csv=Csv(missing={"n": 0}))
    rows = open_pieces(data, [Column("n", "int32", ())], tmp_path)
    assert rows.counts == (4,)
    batch = WindowReader(order_of(4, 4, 4, 1), rows).take(1, 0, [(0, 4)])
    assert sorted(batch["n"].tolist()) == [0, 1, 2, 3]


def test_rows_of_empty_cells_between_tabs_are_rows(tmp_path):
    """A line of blanks is skipped, unless it is one cell."""
    text = "n\tt\n1\ta\n\t\n  \n \t \n4\td\n"
    (tmp_path / "rows.csv").write_text(text)
    data = Data("csv:rows.csv", csv=Csv(delimiter="\t", missing={"n": 0}))
    number = Column("n", "int32", ())
    whole = open_source(data, [number], tmp_path).take(np.arange(4))
    assert whole["n"].tolist() == [1, 0, 0, 4]
    for nbytes in (1, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("placer.readers.csv_pieces.PIECE_NBYTES", nbytes)
            rows = open_pieces(data, [number], tmp_path)
        assert rows.rows == 4
        batch = WindowReader(order_of(4, 4, 4, 1), rows).take(1, 0, [(0, 4)])
        assert sorted(batch["n"].tolist()) == [0, 0, 1, 4]


def error_of(call):
    with pytest.raises(DataError) as caught:
        call()
    return caught.value.message


def read_ids(data, folder):
    rows = open_ids(data, folder)
    order = Order(rows.rows, 4, Window(4, 1), 0, "keep")
    batches_of(order, rows, epochs=1)


def test_errors_name_the_column_and_the_row_of_the_file(tmp_path):
    data = write_parquet(tmp_path, 100, 10)
    table = pq.read_table(tmp_path / "rows.parquet")
    ids = [None if i == 57 else i for i in range(100)]
    table = table.set_column(0, "id", pa.array(ids))
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=10)
    message = error_of(lambda: read_ids(data, tmp_path))
    assert message == "parquet:rows.parquet: column 'id', row 57 is null"
    data = write_csv(tmp_path, 1000)
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(text.replace("\n900,", "\n9x0,"))
    message = error_of(lambda: read_ids(data, tmp_path))
    assert message == "csv:rows.csv: line 1805, column 'id': '9x0' is not a number"


def test_a_row_with_too_few_cells_names_its_line(tmp_path):
    data = write_csv(tmp_path, 1000)
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(text.replace("\n900,", "\n"))
    message = error_of(lambda: read_ids(data, tmp_path))
    assert message == "csv:rows.csv: line 1805 has 3 cells, but the file has 4 columns"


def test_files_that_have_no_pieces(tmp_path):
    data = write_csv(tmp_path, 10)
    (tmp_path / "rows.csv.gz").write_bytes(b"")
    message = error_of(lambda: read_ids(Data("csv:rows.csv.gz"), tmp_path))
    assert "is compressed" in message
    (tmp_path / "rows.csv").write_text('id\n1\n"2\n')
    message = error_of(lambda: read_ids(data, tmp_path))
    assert message == "csv:rows.csv: line 3: unexpected end of data"
    with pytest.raises(DataError, match="there is no such file"):
        read_ids(Data("parquet:none.parquet"), tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read"):
        read_ids(Data("parquet:bad.parquet"), tmp_path)


def test_a_file_that_is_written_to_is_an_error(source):
    data, rows, folder = source
    path = folder / data.parsed.path
    path.write_bytes(path.read_bytes() + b"\n")
    order = order_of(2000)
    message = error_of(lambda: batches_of(order, rows, epochs=1))
    assert message == f"{data.source} has changed while it was read"


def test_a_file_that_is_replaced_is_not_read(source):
    data, rows, folder = source
    path = folder / data.parsed.path
    path.rename(folder / "moved")
    path.write_bytes(b"other")
    order = order_of(2000)
    ids = [b["id"] for *_, (b,) in batches_of(order, rows, epochs=1)]
    np.testing.assert_array_equal(np.sort(np.concatenate(ids)), np.arange(2000))


def test_the_rows_that_a_scan_has_found_are_reported(tmp_path):
    found = []
    options = ReadOptions(report=found.append)
    rows = open_ids(write_csv(tmp_path, 4000), tmp_path, options)
    assert found == np.cumsum(rows.counts).tolist()
    assert len(found) > 3


def test_advice_for_large_pieces(source):
    _, rows, _ = source
    window = Window(80, 4)
    assert rows.open_nbytes > 0
    assert advise(rows, window, 4 * rows.open_nbytes) is None
    large = replace(rows, open_nbytes=10**9)
    assert "4 lanes, with one open piece each, may need 4.0 GB" in advise(
        large, window, 2 * 10**9
    )
    few = replace(rows, counts=(2_000_000, 2_000_000))
    assert "has 2 pieces for 4 lanes" in advise(few, window, 10**9)
    assert "about 4,000,000 rows are read again" in advise(few, window, 10**9)
    assert advise(replace(rows, counts=(200_000,) * 20), window, 10**9) is None
    # A pass has fewer rows, and a tiny one needs no advice.
    small = replace(rows, counts=(60_000,))
    assert advise(small, window, 10**9) is None
    assert advise(replace(rows, counts=(50_000,)), window, 10**9, "pass") is None
    found = advise(small, window, 10**9, "pass")
    assert "has 1 piece for 4 lanes" in found
    assert "about 120,000 rows are read again in each pass" in found


def test_a_window_is_advised_for_many_rows_that_take_long_or_much_memory(tmp_path):
    pieces = open_ids(write_parquet(tmp_path, 200, 20), tmp_path)
    cost = Cost(10**6, 9.0, 10**8)

    def advice(source="csv:rows.csv", cost=cost, available=10**9, counts=(1,), **more):
        data = RowSource(source, batch=512, remainder="keep", **more)
        opened = replace(pieces, counts=tuple(counts))
        return advise_window(data, "eval", cost, 2, available, lambda: opened)

    assert (found := advice()) is not None
    assert found.startswith(
        "csv:rows.csv: each process that reads it needs about 9.0 s and 100 MB for all"
        " 1,000,000 rows"
    )
    assert "'shuffle: {window: 131072, lanes: 64}' in data.eval" in found
    quick = replace(cost, seconds=1.0)
    assert advice(cost=quick) is None
    assert advice(cost=quick, available=7 * 10**8) is not None
    assert advice(cost=replace(cost, rows=10**5)) is None
    # A window cannot have them, or the source has one.
    assert advice("npz:rows.npz") is None
    assert advice(split="train") is None
    assert advice(shuffle=Window(1000, 4)) is None
    # Lanes should not begin within row groups.
    assert "lanes: 10}" in str(advice("parquet:rows.parquet", counts=[50_000] * 20))
    assert advice("parquet:rows.parquet", counts=[100_000] * 10) is None


def test_a_column_with_a_dot_in_its_name_takes_memory(tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(range(20)), 2)
    table = pa.table({"a.b": range(10), "c": range(10), "x": lists})
    pq.write_table(table, tmp_path / "rows.parquet")

    def nbytes(feed, column=ID):
        data = Data("parquet:rows.parquet", columns={column.name: feed})
        return open_pieces(data, [column], tmp_path).open_nbytes

    assert nbytes("a.b") == nbytes("c") > 0
    assert nbytes("x", X) > nbytes("c")


def test_digests_tell_files_apart(tmp_path):
    options = ReadOptions(with_digests=True, seed=5)

    def digest(data):
        return open_ids(data, tmp_path, options).digests().file

    first = digest(write_parquet(tmp_path, 500, 50))
    assert first is not None
    assert digest(write_parquet(tmp_path, 500, 50)) == first
    assert digest(write_parquet(tmp_path, 500, 60)) != first
    assert digest(write_parquet(tmp_path, 501, 50)) != first
    data = write_csv(tmp_path, 300, pad=20)
    first = digest(data)
    path = tmp_path / "rows.csv"
    path.write_bytes(path.read_bytes().replace(b"250,", b"251,"))
    assert digest(data) != first


def test_an_order_of_a_csv_row_is_that_of_python(tmp_path):
    """The number of each row of a file is the one that Python's csv module gives it."""
    write_csv(tmp_path, 500, pad=1000)
    text = (tmp_path / "rows.csv").read_text()
    table = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 4]
    data = Data("csv:rows.csv", columns=FEEDS)
    rows = open_ids(data, tmp_path)
    batches = [b for p in range(len(rows.counts)) for b in rows.reader.read(p, 1)]
    first = [batch.first for batch in batches]
    assert [table[1 + i][0] for i in first] == [
        batch.columns["id"][0].as_py() for batch in batches
    ]


@pytest.mark.parametrize("header", [True, False])
def test_a_piece_of_a_csv_file_ends_with_the_line_that_fills_it(header, tmp_path):
    """The order of rows follows from the pieces, so that their ends never change."""
    lines = [
        f'{i},"{i * i}\n"\n' if i % 1000 < 5 else f"{i},{i}\n" for i in range(90_000)
    ]
    text = "n,x\n" * header + "".join(lines)
    (tmp_path / "rows.csv").write_text(text)
    data = Data("csv:rows.csv", csv=Csv() if header else Csv(header=["n", "x"]))
    pieces = open_pieces(data, [Column("n", "int32", ())], tmp_path)
    expected, inside = [], False
    with (tmp_path / "rows.csv").open("rb") as file:
        if header:
            file.readline()
        while part := file.readlines(256 << 10):
            expected.append(0)
            for line in part:
                inside ^= line.count(b'"') % 2 == 1
                expected[-1] += not inside
    assert pieces.counts == tuple(expected)
    assert len(expected) > 3
