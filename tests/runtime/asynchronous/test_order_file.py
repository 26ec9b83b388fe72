"""The file of an order: what a run that fails or is killed leaves of it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from placer.errors import PlacerError, RunError
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, DRAIN, USE, Order
from placer.runtime.control.failure import FinalError

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


def continued(path: Path, after: int, run: str = "r", *, is_own: bool = False) -> Order:
    """Return the order of a later attempt, which begins after the checkpoint of a step."""
    order = Order(record=path, digest="d", continues=True)
    try:
        order.begin(run, after, is_own=is_own)
    except PlacerError:
        order.close(ended=False)
        raise
    return order


SAVED_2, SAVED_4 = '["saved", 0, 2]', '["saved", 0, 4]'
MARKED = (*LINES, SAVED_2, '["use", 3, 3, 0]', SAVED_4, '["use", 3, 5, 0]')


@pytest.mark.parametrize(
    ("after", "kept"), [(4, MARKED[:7]), (2, MARKED[:5]), (0, (FIRST,))]
)
@pytest.mark.parametrize("end", ["\n", "", '\n["us', "ended"])
def test_a_later_attempt_continues_behind_the_mark_of_its_checkpoint(
    after: int, kept: tuple[str, ...], end: str, tmp_path: Path
) -> None:
    """Also if the last line is torn, or an attempt that has ended is made again."""
    ended = end == "ended"
    last = [end_of(*MARKED, events=len(MARKED) - 1)] if ended else []
    file = written(tmp_path / "order", *MARKED, *last, end="\n" if ended else end)
    order = continued(file, after)
    assert tuple(file.read_text().splitlines()) == kept
    order.add(USE, 3, 9, 9)
    order.sync()
    order.close(ended=True)
    lines = (*kept, '["use", 3, 9, 9]')
    assert tuple(file.read_text().splitlines()) == (
        *lines,
        end_of(*lines, events=len(lines) - 1),
    )
    # A replay reads over the marks.
    replayed = Order(replay=file, digest="d")
    for line in lines[1:]:
        kind, edge, *rest = json.loads(line)
        if kind != "saved":
            assert replayed.next(kind, edge) == rest


@pytest.mark.parametrize("text", ["", FIRST[:9]])
def test_a_later_attempt_begins_a_file_without_a_whole_line(
    text: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "order", text, end="")
    with pytest.raises(FinalError, match=r"order' was removed: it had the order of"):
        continued(file, 4, is_own=True)
    continued(file, 0).close(ended=False)
    assert file.read_text().splitlines() == [FIRST]


def test_an_order_that_began_at_a_checkpoint_is_cut_to_its_first_line(
    tmp_path: Path,
) -> None:
    """As of a run with `--resume` that fails before its first own checkpoint."""
    first = FIRST.replace('"after": 0', '"after": 2')
    file = written(tmp_path / "order", first, *LINES[1:])
    continued(file, 2).close(ended=False)
    assert file.read_text().splitlines() == [first]
    with pytest.raises(PlacerError, match=r"began after step 2, but .* after step 0"):
        Order(replay=file, digest="d").begin("r")


def test_an_order_is_not_continued_without_the_mark_or_by_another_run(
    tmp_path: Path,
) -> None:
    file = written(tmp_path / "order", *MARKED)
    with pytest.raises(FinalError, match="has no mark of the checkpoint of step 3"):
        continued(file, 3)
    assert file.read_text().splitlines() == [*MARKED]
    with pytest.raises(PlacerError, match="the recorded order of another run"):
        continued(file, 4, "other")
    with pytest.raises(PlacerError, match="the recorded order of another run"):
        Order(record=file, digest="d")


def test_an_order_of_an_older_format_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "order", '{"digest": "d", "run": "r"}', *LINES[1:])
    with pytest.raises(PlacerError, match="recorded with another version of placer"):
        Order(replay=file, digest="d")
