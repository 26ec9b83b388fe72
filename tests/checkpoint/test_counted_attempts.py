"""The file of the attempts of a run, and when a run must not begin another one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.checkpoints import write_checkpoint
from support.file_operations import before_operations

from placer.checkpoint import attempts
from placer.checkpoint.attempts import (
    ATTEMPTS,
    AttemptBegun,
    AttemptFailed,
    AttemptFiles,
    AttemptPass,
    add_attempt,
    attempts_of,
    read_attempts,
    read_files,
    read_passes,
    why_no_further,
)
from placer.checkpoint.choice import candidates
from placer.checkpoint.folder import list_checkpoints
from placer.errors import CheckpointError
from placer.plan.settings.data.stream_pass import StreamPass
from placer.runtime.control.failure import FinalError
from placer.runtime.saving.beginning import Beginning, _choose, last_attempt
from placer.runtime.saving.resumed_checkpoint import _of_this_run
from placer.system.files.locks import file_locked


def begun(step: int, run: str = "a") -> AttemptBegun:
    return AttemptBegun(run, 1, step, 0.0, step)


def failed(what: str, *, where: str = "step 5", is_error: bool = True) -> AttemptFailed:
    return AttemptFailed("a", 1, "ps:0", where, what, is_error, 0.0)


def test_a_line_that_a_crash_has_cut_is_left_out_and_removed(tmp_path):
    lines = [begun(0), failed("torn"), begun(3, "b")]
    for line in lines:
        add_attempt(tmp_path, line)
    path = tmp_path / ATTEMPTS
    path.write_bytes(path.read_bytes()[:-1])  # only the end of the line is missing
    assert read_attempts(tmp_path) == lines[:2]
    path.write_bytes(path.read_bytes()[:-30])
    assert read_attempts(tmp_path) == lines[:2]
    add_attempt(tmp_path, begun(6))
    assert read_attempts(tmp_path) == [*lines[:2], begun(6)]
    assert attempts_of(read_attempts(tmp_path), "b") == []


def test_a_line_is_added_when_another_process_has_unlocked_the_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(attempts, "LOCK_WAIT", 0.0)
    add_attempt(tmp_path, begun(0))
    path = tmp_path / ATTEMPTS
    with path.open("ab") as other, file_locked(other.fileno(), wait=0.0):
        other.write(b'{"attempt": ')  # the beginning of a line
        other.flush()
        with pytest.raises(CheckpointError, match="another process has locked it"):
            add_attempt(tmp_path, begun(3))
        assert path.read_bytes().endswith(b'{"attempt": ')
    add_attempt(tmp_path, begun(3))
    assert read_attempts(tmp_path) == [begun(0), begun(3)]


def test_the_passes_of_a_run_are_removed_when_another_run_begins(tmp_path, monkeypatch):
    passes = {number: StreamPass(number, ()) for number in range(1, 4)}
    for run in ("a", "b"):
        add_attempt(tmp_path, begun(0, run))
        add_attempt(tmp_path, AttemptFiles(run, {"training": ("1.csv",)}))
        with monkeypatch.context() as patch:
            patch.delattr(attempts, "_read_all")  # a pass does not read the other ones
            for each in passes.values():
                add_attempt(tmp_path, AttemptPass(run, each))
    assert read_passes(tmp_path, "a") == read_files(tmp_path, "a") == {}
    seen = []

    def look(name, path):
        seen.append(read_attempts(tmp_path))

    path = tmp_path / ATTEMPTS
    with path.open("ab") as file:
        file.write(b'{"attempt": ')  # a crash has cut it
    add_attempt(tmp_path, begun(3, "b"))  # its next attempt
    assert read_passes(tmp_path, "b") == passes
    before = [begun(0, "a"), begun(0, "b"), begun(3, "b")]
    with before_operations(tmp_path, look):
        add_attempt(tmp_path, begun(6, "c"))
    assert read_attempts(tmp_path) == [*before, begun(6, "c")]
    assert all(each in (before, [*before, begun(6, "c")]) for each in seen)
    assert b"pass" not in path.read_bytes()


def test_an_attempt_keeps_the_passes_that_it_may_train_again(tmp_path):
    """Those from the oldest checkpoint of the run on: newer ones may be damaged. And the first."""
    write_checkpoint(tmp_path, 2, 1, epoch=2)  # which the run has resumed
    add_attempt(tmp_path, AttemptBegun("a", 1, 2, 0.0, 1))
    add_attempt(tmp_path, AttemptFiles("a", {"training": ("1.csv",)}))
    for number in range(3, 9):
        add_attempt(tmp_path, AttemptPass("a", StreamPass(number, ())))
    settings = SimpleNamespace(folder=tmp_path, best=None)
    options = SimpleNamespace(resume=tmp_path, join_timeout=0.0, restarts=9)
    execution = SimpleNamespace(
        options=options, run="a", attempt=2, me=SimpleNamespace(name="worker:0")
    )
    for checkpoints, kept in (
        ([], [3, 4, 5, 6, 7, 8]),
        ([(10, 2, 6), (12, 3, 7)], [3, 6, 7, 8]),
    ):
        for step, sequence, number in checkpoints:
            write_checkpoint(tmp_path, step, sequence, epoch=number)
        begun = Beginning(resumes=True)
        with begun.lock:
            assert _choose(execution, settings, begun) == (tmp_path, bool(checkpoints))
        assert [*read_passes(tmp_path, "a")] == kept
        assert read_files(tmp_path, "a") == {"training": ("1.csv",)}
    assert len(read_attempts(tmp_path)) == 3


def test_a_run_counts_its_own_attempts_on(tmp_path):
    assert last_attempt(tmp_path, "a") == 0
    for run, number in [("a", 1), ("a", 2), ("b", 7)]:
        add_attempt(tmp_path, AttemptBegun(run, number, 0, 0.0))
    assert [last_attempt(tmp_path, run) for run in ("a", "b", "")] == [2, 7, 0]


def test_a_damaged_line_is_an_error(tmp_path):
    assert read_attempts(tmp_path) == []
    (tmp_path / ATTEMPTS).write_bytes(b'{"attempt": "begun"}\n')
    with pytest.raises(CheckpointError, match=r"cannot be read: .*\n.*only counts"):
        read_attempts(tmp_path)


def test_a_crash_while_a_line_is_added_leaves_the_lines_before(tmp_path):
    """At each operation, the file has the lines before, with or without the new one."""
    add_attempt(tmp_path, begun(0))
    seen = []

    def look(name, path):
        seen.append(read_attempts(tmp_path))

    with before_operations(tmp_path, look):
        add_attempt(tmp_path, begun(3))
    assert seen
    assert all(each in ([begun(0)], [begun(0), begun(3)]) for each in seen)


@pytest.mark.parametrize(
    ("steps", "restarts", "ends"),
    [
        ([0], 0, False),
        ([0, 0], 1, False),
        ([0, 0, 0], 1, True),
        ([3, 3, 3], 2, False),
        ([0, 3, 3, 3], 1, True),
        ([3, 3, 0, 3], 1, False),  # a damaged checkpoint led further back
        ([3, 3, 6, 6], 1, False),
    ],
)
def test_attempts_in_a_row_from_the_same_step_end_a_run(steps, restarts, ends):
    why = why_no_further([begun(step) for step in steps], restarts, "worker:0")
    assert bool(why) is ends
    assert why.startswith(
        f"worker:0 failed {restarts + 1} times in a row" if ends else ""
    )


@pytest.mark.parametrize(
    ("errors", "ends"),
    [
        ([failed("a")], False),
        ([failed("a"), failed("b")], False),
        ([failed("a"), failed("b"), failed("a")], True),
        ([failed("a"), failed("a", where="step 6")], False),
        # A killed process is no error of its code, nor is one of an asynchronous run.
        ([failed("a", is_error=False)] * 2, False),
        ([failed("a", where="")] * 2, False),
    ],
)
def test_the_same_error_at_the_same_position_ends_a_run(errors, ends):
    lines = [each for error in errors for each in (begun(0), error)]
    why = why_no_further([*lines, begun(4)], 9, "worker:0")
    assert bool(why) is ends
    assert why.endswith("again at the same step, with the same error" if ends else "")


def damage(folder, step):
    """Change a byte of each file with values."""
    for path in (folder / f"step-{step:06}").iterdir():
        if path.name != "manifest.json":
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_damaged_checkpoints_of_a_run_are_set_aside(tmp_path):
    """The one of the run that it resumes stays."""
    for sequence in (5, 6, 7):
        write_checkpoint(tmp_path, sequence, sequence)
    (tmp_path / "damaged-step-000007").mkdir()  # of an earlier failure
    tried = candidates(tmp_path, print)
    own = _of_this_run(tried, tmp_path, after=5)
    assert [next(own).folder.name for _ in range(2)] == ["step-000007", "step-000006"]
    for step in (6, 7):
        damage(tmp_path, step)
    damaged = "all checkpoints of this run are damaged, .*'damaged-step-000007-2', 'dam"
    with pytest.raises(CheckpointError, match=damaged) as error:
        next(own)
    assert not isinstance(error.value, FinalError)
    assert [path.name for path, _ in list_checkpoints(tmp_path)] == ["step-000005"]


def test_a_checkpoint_that_only_cannot_be_loaded_is_not_set_aside(tmp_path):
    """For example, because the disk of a node does not answer."""
    for sequence in (6, 7):
        write_checkpoint(tmp_path, sequence, sequence)
    own = _of_this_run(candidates(tmp_path, print), tmp_path, after=5)
    assert len([next(own), next(own)]) == 2
    damage(tmp_path, 7)
    with pytest.raises(FinalError, match=r"'.*step-000006', but it is not damaged"):
        next(own)
    assert len(list_checkpoints(tmp_path)) == 2
