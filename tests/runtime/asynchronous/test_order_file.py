"""The file of an order: what a run that fails or is killed leaves of it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from placer.errors import PlacerError, RunError
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, DRAIN, USE, Order

FIRST = '{"format": 2, "digest": "d", "run": "r", "after": 0}'
LINES = (FIRST, '["use", 3, 1, 0]', '["use", 3, 2, 1]', '["drain", 0, 2]')


def end_of(*lines: str, events: int) -> str:
    """Return the last line of a file with these lines before it."""
    before = zlib.crc32("".join(f"{line}\n" for line in lines).encode())
    return f'["end", 0, {events}, {before}]'


def recording(path: Path) -> Order:
    order = Order(record=path, digest="d")
    order.begin("r")
    return order


def written(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end)
    return path


def test_each_event_is_in_the_file_when_it_has_happened(tmp_path: Path) -> None:
    """So it is there if the process is killed next."""
    file = tmp_path / "order" / "worker-0.jsonl"
    order = recording(file)
    order.add(USE, 3, 1, 0)
    assert file.read_text().splitlines() == [*LINES[:2]]
    order.add(DRAIN, ALL_EDGES, 1)
    assert json.loads(file.read_text().splitlines()[-1]) == [DRAIN, ALL_EDGES, 1]
    order.close(ended=False)
    assert len(file.read_text().splitlines()) == 3


def test_only_the_file_of_a_run_that_has_ended_has_an_end(tmp_path: Path) -> None:
    order = recording(tmp_path / "whole")
    order.add(USE, 3, 1, 0)
    order.close(ended=True)
    end = end_of(*LINES[:2], events=1)
    assert (tmp_path / "whole").read_text().splitlines()[-1] == end
    replayed = Order(replay=tmp_path / "whole", digest="d")
    assert replayed.replayed == "r"
    assert replayed.next(USE, 3) == [1, 0]
    with pytest.raises(RunError, match="no more 'use' events for edge 3") as error:
        replayed.next(USE, 3)
    assert "the options of the run that was recorded" in str(error.value)


@pytest.mark.parametrize(("end", "kept"), [("\n", 2), ("", 1), ("\n[", 2)])
def test_the_order_of_a_run_that_was_killed_says_where_it_ends(
    end: str, kept: int, tmp_path: Path
) -> None:
    file = written(tmp_path / "killed", *LINES[:3], end=end)
    order = Order(replay=file, digest="d")
    for step in range(1, kept + 1):
        assert order.next(USE, 3) == [step, step - 1]
    with pytest.raises(RunError, match="ends here: the recorded run") as error:
        order.next(USE, 3)
    assert "the replay is correct up to this point" in str(error.value)


@pytest.mark.parametrize(
    "lines",
    [
        (*LINES, end_of(*LINES, events=2)),  # one is missing
        (*LINES, end_of(*LINES, events=3), LINES[1]),
        (*LINES[:3], '["drain", 0, 1]', end_of(*LINES, events=3)),  # a changed digit
        (LINES[0], "[", *LINES[1:], '["end", 0, 3, 0]'),
        (FIRST, '["jump", 0]', end_of(FIRST, '["jump", 0]', events=1)),
        ('{"digest": "d"}', LINES[1]),
        ('["digest", "d"]', LINES[1]),
        ('{"digest": "d"',),
        (),
    ],
)
def test_a_damaged_file_is_refused(lines: tuple[str, ...], tmp_path: Path) -> None:
    file = written(tmp_path / "damaged", *lines, end="\n" if len(lines) > 1 else "")
    with pytest.raises(PlacerError, match="is not a file that --record-order"):
        Order(replay=file, digest="d")


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    order = Order(digest="d")
    order._record = tmp_path / "full"
    order._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(PlacerError, match=r"cannot write '.*full': No space left"):
        order.add(USE, 3, 1, 0)
    order.close(ended=False)
