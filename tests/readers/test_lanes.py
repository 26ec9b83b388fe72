"""Streams of Python functions: lanes give the same rows to any readers, from any mark on."""

from __future__ import annotations

import textwrap
import threading
import zlib
from collections.abc import Iterator, Mapping
from math import lcm, prod
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from placer import Mark
from placer.errors import DataError, PlacerError, RunError, SpecWarning
from placer.place.layouts.partition import RowShard
from placer.plan.settings.data.columns import Range
from placer.plan.settings.data.lanes import LanePosition
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.stream import Stream
from placer.readers import Column, Data, ReadOptions, check, open_source
from placer.readers.check import FirstRows, check_source
from placer.readers.source import make_request
from placer.readers.streams import lane as lane_module
from placer.readers.streams import lane_reader
from placer.readers.streams.lane import Lane
from placer.readers.streams.lane_reader import LaneReader
from placer.readers.streams.lane_rows import LaneRows
from placer.readers.streams.lane_source import LaneSource, open_lanes
from placer.runtime.batches.batches import own_ranges
from placer.runtime.batches.same_rows import check_same_lanes

ID, X = Column("id", "int64", ()), Column("x", "float32", (2,))
COMPARED = ReadOptions(with_digests=True)
EVERY = [(0, 8)]


def stream(batch: int, lanes: int, rows: int) -> RowSource:
    return RowSource(
        "python:clicks:rows",
        batch=batch,
        remainder="drop",
        stream=Stream(lanes=lanes, rows=rows),
    )


class Clicks:
    """A function of a stream: row i of lane l has the id 1000 l + i.

    Each call yields blocks of other sizes, and marks at other places. Arrays are reused, and
    the state of the mark is changed.
    """

    def __init__(self, seed: int, end: int | None = None) -> None:
        self.random, self.end = Random(seed), end
        self.calls: list[tuple[int, int, Any]] = []

    def __call__(self, lane: int, lanes: int, mark: Any) -> Iterator[Any]:
        self.calls.append((lane, lanes, mark))
        random = Random(self.random.random())
        row = mark.pop("next") if mark else 0
        ids = np.empty(9, np.int64)
        state = {"next": row}
        while self.end is None or row < self.end:
            count = random.choice([0, 1, 2, 9])
            if self.end is not None:
                count = min(count, self.end - row)
            ids[:count] = np.arange(row, row + count) + 1000 * lane
            yield {"id": ids[:count], "x": ids[:count, None] * [0.5, -1.0], "more": ids}
            ids[:] = -1
            row += count
            if random.random() < 0.3:
                state["next"] = row
                yield Mark(state)


def lane_source(function: Any, data: RowSource, *, compared: bool = True) -> LaneSource:
    assert data.stream is not None
    assert data.stream.lanes is not None
    options = COMPARED if compared else ReadOptions()
    request = make_request(data, [ID, X], Path(), options)
    return LaneSource(request, function, data.stream.lanes, (ID, X))


class Run:
    """An attempt of a run with some workers: each reads its rows of each microbatch."""

    def __init__(
        self,
        data: RowSource,
        function: Any,
        workers: int,
        parts: int,
        begin: tuple[int, int] = (1, 0),
        positions: Mapping[int, LanePosition] = {},
    ) -> None:
        self.data, self.parts = data, parts
        source = lane_source(function, data)
        self.shards = [RowShard((i,), workers) for i in range(workers)]
        self.nodes = [LaneRows(source, data, begin, positions) for _ in self.shards]

    def batch(self, epoch: int, step: int) -> list[int]:
        """Return the ids of a batch, in the order of its rows."""
        ids: dict[int, list[int]] = {}
        for shard, rows in zip(self.shards, self.nodes, strict=True):
            reader = rows.reader(shard, self.parts)
            for part in range(self.parts):
                ranges = own_ranges(shard, self.data.batch, part, self.parts)
                taken = reader.take(epoch, step, ranges)
                assert (taken["x"] == taken["id"][:, None] * [0.5, -1.0]).all()
                ids[ranges[0][0]] = taken["id"].tolist()
        return [each for first in sorted(ids) for each in ids[first]]

    def positions(self, epoch: int, step: int) -> dict[int, LanePosition]:
        """Return the positions of all lanes, as read from a checkpoint."""
        found: dict[int, LanePosition] = {}
        for rows in self.nodes:
            found |= rows.positions(epoch, step)
        text = msgspec.json.encode(found)
        return msgspec.json.decode(text, type=dict[int, LanePosition])

    def close(self) -> None:
        for rows in self.nodes:
            rows.close()


def ended_lanes(run: Run, batches: int) -> list[int]:
    """Return the lanes of a run with one worker that do not fill a number of batches."""
    (rows,) = run.nodes
    rows.wait(batches, 60)
    found = rows.arrived().items()
    return [n for n, (parts, has_ended) in found if has_ended and parts < batches]


def plain_batch(number: int, batch: int, lanes: int) -> list[int]:
    part = batch // lanes
    first = number * part
    return [1000 * lane + first + row for lane in range(lanes) for row in range(part)]


def test_each_row_is_trained_once_with_any_workers_and_restarts() -> None:
    for seed in range(200):
        random = Random(seed)
        shares = random.choice([(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)])
        others = random.choice([(1, 1), (2, 1), (3, 1), (1, 3)])
        lanes = lcm(prod(shares), prod(others)) * random.choice([1, 1, 2])
        batch, steps = lanes * random.choice([1, 2, 5]), random.choice([1, 3, 7])
        data = stream(batch, lanes, batch * steps + random.randrange(batch))
        begin, positions, number = (1, 0), dict[int, LanePosition](), 0
        for workers, parts in (shares, others):
            run = Run(data, Clicks(seed), workers, parts, begin, positions)
            for _ in range(random.choice([1, 2, 4])):
                epoch, step = 1 + number // steps, number % steps
                assert run.batch(epoch, step) == plain_batch(number, batch, lanes), seed
                number += 1
                is_trained = random.random() < 0.5
                if is_trained:
                    for rows in run.nodes:
                        rows.trained(epoch, step)
            for ahead in range(number, number + random.randrange(3)):
                run.batch(1 + ahead // steps, ahead % steps)
            if not is_trained:  # so its rows can be read again
                assert run.batch(epoch, step) == plain_batch(number - 1, batch, lanes)
            positions = run.positions(epoch, step)
            assert [*sorted(positions)] == [*range(lanes)]
            for position in positions.values():
                trained = (position.mark or {"next": 0})["next"] + position.rows
                assert trained == number * batch // lanes
            begin = 1 + number // steps, number % steps
            run.close()


def test_the_digest_of_a_lane_depends_only_on_its_rows() -> None:
    data = stream(8, 4, 24)
    runs = [Run(data, Clicks(seed), 1, 1) for seed in (1, 2)]
    found = []
    for run in runs:
        for number in [*range(5), *([4] if run is runs[1] else []), *range(5, 8)]:
            run.batch(1 + number // 3, number % 3)  # the fifth batch is read twice
        found.append([run.nodes[0].digests(epoch) for epoch in (1, 2)])
        run.close()
    assert found[0] == found[1]
    ids = (
        np.arange(12, dtype=np.int64) + 3000
    )  # two passes of three batches of two rows
    x = (ids[:, None] * [0.5, -1.0]).astype(np.float32)
    assert found[0][1][3] == {"id": zlib.crc32(ids.data), "x": zlib.crc32(x.tobytes())}
    assert found[0][0][3]["id"] == zlib.crc32(ids[:6].data)


def test_other_rows_of_a_lane_are_an_error_with_the_lane_and_the_processes() -> None:
    data, reports = stream(8, 4, 8), {}
    for process, shift in (("worker:0", 0), ("worker:1", 0), ("heter:0", 1)):

        def rows(lane: int, lanes: int, mark: Any, shift: int = shift) -> Iterator[Any]:
            ids = np.arange(2) + (shift if lane == 2 else 0)
            yield {"id": ids, "x": np.zeros((2, 2))}

        reader = LaneReader(lane_source(rows, data), data)
        reader.take(1, 0, [(0, 6)] if process == "worker:1" else EVERY)
        reports[process] = reader.digests(1)
        reader.close()
    check_same_lanes(data, 1, {key: reports[key] for key in ("worker:0", "worker:1")})
    with pytest.raises(RunError) as caught:
        check_same_lanes(data, 1, reports)
    assert caught.value.message == (
        "the nodes do not read the same training data: python:clicks:rows: column 'id' of"
        " lane 2 in pass 1 on heter:0 differs from that on worker:0, worker:1"
    )


def test_a_process_calls_the_function_only_for_its_lanes() -> None:
    function, data = Clicks(0), stream(8, 4, 8)
    reader = LaneReader(lane_source(function, data), data)
    reader.take(1, 0, [(2, 4), (6, 8)])
    reader.close()
    assert sorted(function.calls) == [(1, 4, None), (3, 4, None)]


def test_other_rows_after_a_mark_than_before_are_an_error() -> None:
    def rows(lane: int, lanes: int, mark: Any) -> Iterator[Any]:
        first = 7 if mark else 0
        while True:
            yield {"id": np.array([first]), "x": np.zeros((1, 2))}
            first += 1

    data = stream(8, 4, 8)
    reader = LaneReader(lane_source(rows, data), data)
    reader.take(1, 0, EVERY)
    positions = reader.positions(1, 0)
    reader.close()
    replace = msgspec.structs.replace
    moved = {n: replace(each, mark={"next": 0}) for n, each in positions.items()}
    again = LaneReader(lane_source(rows, data), data, (2, 0), moved)
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            again.take(2, 0, EVERY)
    again.close()
    assert caught.value.message == (
        "python:clicks:rows: lane 0 does not have the same 2 rows after the mark"
        ' {"next": 0} that were trained'
    )
    data = stream(8, 8, 8)
    with pytest.raises(DataError, match="the stream has 8 lanes, but had 4 in the"):
        LaneReader(lane_source(rows, data), data, (2, 0), positions)
    data = stream(8, 4, 8)
    ended = Run(data, Clicks(0, end=1), 1, 1, (2, 0), positions)
    with pytest.raises(
        DataError, match="lane 0 has fewer rows than the 2 rows at its start"
    ):
        ended.batch(2, 0)
    ended.close()


def test_rows_after_the_end_of_a_lane_are_an_error() -> None:
    data = stream(8, 4, 16)
    run = Run(data, Clicks(0, end=5), 1, 1)
    run.batch(1, 0)
    assert ended_lanes(run, 2) == []
    assert run.batch(1, 1) == plain_batch(1, 8, 4)
    assert ended_lanes(run, 3) == [0, 1, 2, 3]
    with pytest.raises(DataError, match="lane 0 has ended before rows that were"):
        run.batch(2, 0)
    position = run.positions(1, 1)[3]
    assert (position.mark or {"next": 0})["next"] + position.rows == 4
    run.close()


def test_few_large_blocks_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "SMALL", 0)
    read: list[int] = []

    def rows(lane: int, lanes: int, mark: Any) -> Iterator[Any]:
        for number in range(100):
            read.append(number)
            yield {"id": np.full(4, number), "x": np.zeros((4, 2))}

    data = stream(4, 1, 4)
    lane = Lane(lane_source(rows, data), 0, 4, LanePosition())
    lane.take({"id": np.empty(4, np.int64)})
    lane._threads.wait_for(lambda: lane._has_ended or not lane._has_room())
    assert read == [0, 1, 2]
    lane.stop()
    lane.join(60)
    assert read == [0, 1, 2]


def test_closing_ends_a_wait_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_reader, "END_LIMIT", 0)  # the function does not return
    begun, closed = threading.Event(), threading.Event()

    def rows(lane: int, lanes: int, mark: Any) -> Iterator[Any]:
        begun.set()
        assert closed.wait(60)
        yield from ()

    data = stream(1, 1, 1)
    reader = LaneReader(lane_source(rows, data), data)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            reader.take(1, 0, [(0, 1)])
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    assert begun.wait(60)
    reader.close()
    thread.join(60)
    closed.set()
    assert [str(error) for error in errors] == ["the lane is closed"]


BAD = [
    ("yield 1", "lane 0, block 0 is a int, not a dict"),
    ("return None", "lane 0: the function returned None"),
    ("yield {'id': ids}", "lane 0, block 0 has no column 'x'"),
    ("yield {'id': 3, 'x': x}", "column 'id' is a int, not an array"),
    ("yield {'id': ids[:1], 'x': x}", "lane 0, block 0: its columns have different"),
    (
        "yield {'id': ids, 'x': x[:, :1]}",
        "lane 0, block 0: column 'x' has shape [n, 1]",
    ),
    (
        "yield {'id': ids + 0.5, 'x': x}",
        "block 0: column 'id', row 0: 0.5 does not fit",
    ),
    (
        "yield block; yield {'id': ids - 1, 'x': x}",
        "block 1: column 'id', row 0: -1 is",
    ),
    ("yield block; 1 / 0", "failed in lane 0, at block 1: ZeroDivisionError"),
    (
        "yield placer.Mark(ids)",
        "at block 0: TypeError: the state of a mark is of type ndarray, which JSON"
        " does not have; write .tolist()",
    ),
    (
        "yield placer.Mark({'at': [None, {'offset': ids[0]}]})",
        "the state['at'][1]['offset'] of a mark is of type int64, which JSON does not"
        " have; write int(...)",
    ),
    ("yield placer.Mark({2})", "is of type set, which JSON does not have"),
    ("yield placer.Mark({1: 2})", "the key 1 of a mark's state is not a text"),
    ("yield placer.Mark([{'a': {None: 2}}])", "the key None of a mark's state"),
    ("import other; yield block", "No module named 'other'"),
    ("yield placer.Mark(float('nan'))", "ValueError: Out of range float values"),
    ("yield placer.Mark('x' * 63_999)", "has 64,001 bytes as JSON; 64,000 are allowed"),
    ("yield placer.Mark('\\ud800')", "UnicodeEncodeError"),
    ("state = []; state.append(state); yield placer.Mark(state)", "Circular reference"),
]


@pytest.mark.parametrize(("body", "message"), BAD, ids=[body for body, _ in BAD])
def test_an_error_names_the_lane_and_the_line(
    tmp_path: Path, body: str, message: str
) -> None:
    error = error_of(
        tmp_path, f"def rows(lane, lanes, mark):\n{textwrap.indent(TOP + body, ' ')}"
    )
    assert message in str(error)
    if isinstance(error, RunError):
        more = "; import other at the top of clicks.py" if "other" in body else ""
        assert error.hint == f"see clicks.py, line 7{more}"


TOP = """\
ids, x = np.arange(2), np.zeros((2, 2))
block = {'id': ids, 'x': x}
"""


def error_of(folder: Path, code: str, **options: Any) -> PlacerError:
    """Return the error of the first two batches of a module's function."""
    (folder / "other.py").touch()
    (folder / "clicks.py").write_text(f"import numpy as np\nimport placer\n\n{code}\n")
    limits = Range(low=0, high=9, op="e", kind="embedding")
    columns = [msgspec.structs.replace(ID, limits=limits), X]
    data = msgspec.structs.replace(stream(2, 1, 2), **options)
    with pytest.raises((DataError, RunError)) as caught:
        _read_two(data, columns, folder)
    return caught.value


def _read_two(data: RowSource, columns: list[Column], folder: Path) -> None:
    reader = LaneReader(open_lanes(data, columns, folder, COMPARED), data)
    for epoch in (1, 2):
        reader.take(epoch, 0, [(0, 2)])


def test_an_error_of_the_function_is_found_when_it_is_opened(tmp_path: Path) -> None:
    error = error_of(tmp_path, "def rows():\n    yield 1")
    assert "is called as rows(lane, lanes, mark)" in error.message
    assert error.hint == "define it as: def rows(lane, lanes, mark):"
    error = error_of(tmp_path, "def row(lane, lanes, mark):\n    yield 1")
    assert "has no function 'rows'" in error.message
    good = "def rows(lane, lanes, mark):\n    yield 1"
    error = error_of(tmp_path, good, columns={"x": ["a", "b"]})
    assert "gives blocks of rows, but" in error.message
    with pytest.raises(DataError, match="is the function of a stream: it takes a lane"):
        open_source(Data("python:clicks:rows"), [ID], tmp_path)
    (tmp_path / "clicks.py").unlink()
    with pytest.raises(DataError, match=r"there is no clicks\.py"):
        open_lanes(stream(2, 1, 2), [ID], tmp_path, COMPARED)


def test_inputs_of_other_processes_are_compared_only(tmp_path: Path) -> None:
    (tmp_path / "clicks.py").write_text(
        "import numpy as np\n"
        "def rows(lane, lanes, mark):\n"
        "    yield {'id': np.arange(2), 'x': np.zeros((2, 2)), 'other': 3}\n"
    )
    options = ReadOptions(other_columns=(ID,), with_digests=True)
    data = stream(2, 1, 2)
    reader = LaneReader(open_lanes(data, [X], tmp_path, options), data)
    assert [*reader.take(1, 0, [(0, 2)])] == ["x"]
    digests = reader.digests(1)[0]
    reader.close()
    assert digests["id"] == zlib.crc32(np.arange(2, dtype=np.int64).tobytes())
    assert [*digests] == ["x", "id"]


def test_a_check_reads_the_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def rows(lane, lanes, mark):\n    yield {'id': lane + np.arange(3)}\n"
    (tmp_path / "clicks.py").write_text(f"import numpy as np\n{code}")
    data = stream(2, 1, 2)
    assert check_source(data, [ID], tmp_path) == FirstRows(3, files=1)
    with pytest.raises(DataError, match="block 0 has no column 'x'"):
        check_source(data, [ID, X], tmp_path)
    later = "yield {'id': lane + np.arange(3)}\n    yield placer.Mark(np.int64(3))"
    (tmp_path / "clicks.py").write_text(
        f"import numpy as np\nimport placer\n{code}    {later}\n"
    )
    with pytest.raises(RunError, match="a mark is of type int64"):
        check_source(data, [ID], tmp_path)
    monkeypatch.setattr(check, "FIRST_BLOCK_LIMIT", 0.02)
    for first, says in (
        ("threading.Event().wait(60)", "has given no rows yet"),
        ("while True: yield {'id': np.arange(0)}", "has given no rows yet"),
        ("return", "has ended without rows"),
    ):
        text = code.replace("yield", f"{first}\n    yield")
        (tmp_path / "clicks.py").write_text(
            f"import threading\nimport numpy as np\n{text}"
        )
        with pytest.warns(SpecWarning, match=f"lane 0 {says}; its blocks are not"):
            assert check_source(data, [ID], tmp_path) is None


def test_a_mark_keeps_a_copy_of_its_state() -> None:
    state = {"offsets": [1, (2, 3)], "text": "ä", "none": None}
    mark = Mark(state)
    state["offsets"] = []
    assert mark.state == {"offsets": [1, [2, 3]], "text": "ä", "none": None}
    assert Mark("x" * 63_998).state == "x" * 63_998
