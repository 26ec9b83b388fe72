"""A crash or a full disk at any moment of writing a checkpoint leaves one to continue
from."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.checkpointed import build, check_equal, lines, run, spec
from support.file_operations import before_operations

import placer
from placer.checkpoint.folder import list_checkpoints, locked
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError, RunError
from placer.runtime.saving import checkpoint_files, checkpoints, writing_thread

pytestmark = pytest.mark.usefixtures("threads_watched")

OPTIONS = {"checkpoint_every": 2, "checkpoint_keep": 1, "steps": 8}
SHORT = {**OPTIONS, "steps": 6}  # an epoch
WHOLE = {**OPTIONS, "steps": 12}


@dataclass(frozen=True)
class Copy:
    """The files of a run as they were before a file operation."""

    operation: str
    checkpoints: Path
    history: Path

    @property
    def last_step(self) -> int:
        """The step of the last complete checkpoint; 0 if there is none."""
        listed = list_checkpoints(self.checkpoints)
        return listed[0][1].progress.step if listed else 0

    @property
    def state(self) -> tuple[int, tuple[str, ...]]:
        """What distinguishes one moment from another: the last complete checkpoint, and
        the files with their sizes."""
        files = sorted(self.checkpoints.rglob("*"))
        sizes = (
            f"{path.relative_to(self.checkpoints)} {path.lstat().st_size}"
            for path in files
        )
        return self.last_step, tuple(sizes)


def test_a_folder_stays_locked_while_a_failed_run_writes_to_it(tmp_path, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()
    commit = checkpoints.commit

    def late_commit(*arguments):
        begun.set()
        goes_on.wait(60)
        return commit(*arguments)

    class Fails(placer.Callback):
        def on_step(self, record):
            if begun.wait(60):
                raise ValueError("failed")

    monkeypatch.setattr(checkpoints, "commit", late_commit)
    monkeypatch.setattr(writing_thread, "FAILED_WAIT", 0.01)
    folder = tmp_path / "saved"
    with pytest.raises(ValueError, match="failed"):
        placer.launch(
            build(tmp_path),
            in_process=True,
            checkpoint=folder,
            checkpoint_every=1,
            callbacks=[Fails()],
        )
    (writer,) = (
        each
        for each in threading.enumerate()
        if each.name == "placer checkpoints of worker:0"
    )
    with pytest.raises(CheckpointError, match="another run writes"), locked(folder):
        pass
    goes_on.set()
    writer.join(60)
    with locked(folder):
        assert [each.name for each in folder.iterdir()] == ["step-000001"]


def test_nodes_that_write_no_file_report_none(tmp_path, monkeypatch):
    """The control node would never receive their reports."""
    senders = []
    send = checkpoint_files.send_json

    def note(channel, *arguments):
        senders.append(channel.node)
        send(channel, *arguments)

    monkeypatch.setattr(checkpoint_files, "send_json", note)
    run(build(tmp_path), checkpoint=tmp_path / "saved", steps=1)
    assert sorted(senders) == ["ps:0", "ps:1"]


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A run that is left alone, and the files of a shorter one before each
    operation."""
    folder = tmp_path_factory.mktemp("copies")
    made: list[Copy] = []
    history = folder / "short"

    def copy(operation: str, path: Path) -> None:
        if not history.exists():  # at the start
            return
        target = folder / f"copy{len(made)}"
        made.append(Copy(operation, target / "checkpoints", target / "history"))
        shutil.copytree(folder / "checkpoints", made[-1].checkpoints, symlinks=True)
        shutil.copy(history, made[-1].history)

    build(folder)
    with before_operations(folder / "checkpoints", copy):
        run(folder / "b", checkpoint=folder / "checkpoints", history=history, **SHORT)
    run(
        folder / "b",
        checkpoint=folder / "whole",
        history=folder / "history",
        save_params=folder / "params",
        **WHOLE,
    )
    return folder, made


def test_a_crash_at_any_moment_leaves_the_last_complete_checkpoint(copies, tmp_path):
    folder, made = copies
    kept = tmp_path / "checkpoints"
    run(folder / "b", checkpoint=kept, **{**SHORT, "checkpoint_keep": 9})
    assert {copy.operation for copy in made} >= {"mkdir", "write", "fsync", "rename"}
    assert len(made) > 40
    for copy in made:
        for path, _ in list_checkpoints(copy.checkpoints):
            Checkpoint(path).verify()
            for file in path.glob("*.safetensors"):
                undisturbed = kept / path.name / file.name
                assert file.read_bytes() == undisturbed.read_bytes()
    steps = [0, *(copy.last_step for copy in made)]
    assert steps == sorted(steps)
    assert set(steps) == {0, 2, 4, 6}


def check_continues(folder: Path, copy: Copy, into: Path) -> None:
    """Check that a run continues from the files that a crash has left, with the bits of
    the run that was left alone."""
    kept, history, params = into / "checkpoints", into / "history", into / "params"
    shutil.copytree(copy.checkpoints, kept, symlinks=True)
    shutil.copy(copy.history, history)
    run(
        folder / "b",
        resume=kept if copy.last_step else None,
        checkpoint=kept,
        history=history,
        save_params=params,
        **WHOLE,
    )
    check_equal(params, folder / "params")
    assert lines(history) == lines(folder / "history")
    assert {path.name for path in kept.iterdir()} == {"best", "step-000012"}


@pytest.mark.parametrize("last", [0, 2, 4, 6])
def test_a_run_continues_after_a_crash(last, copies, tmp_path):
    """With this complete checkpoint, and the most files that were left beside it."""
    folder, made = copies
    left = {
        sum(".tmp" in file for file in copy.state[1]): copy
        for copy in made
        if copy.last_step == last
    }
    assert max(left) > 0
    check_continues(folder, left[max(left)], tmp_path)


@pytest.mark.slow
def test_a_run_continues_after_a_crash_at_any_moment(copies, tmp_path):
    """From each state that differs from the others by more than the bytes of a file."""
    folder, made = copies
    states = {copy.state: copy for copy in made}
    assert len(states) > 30
    for number, copy in enumerate(states.values()):
        (tmp_path / str(number)).mkdir()
        check_continues(folder, copy, tmp_path / str(number))


def test_a_full_disk_at_any_moment_costs_one_checkpoint(tmp_path, capsys):
    """The disk is full during operation k of the checkpoint of step k."""
    build(tmp_path, spec(train={"epochs": 10}))
    kept = tmp_path / "checkpoints"
    counts: Counter[int] = Counter()
    failed: list[int] = []

    def fail(name: str, path: Path) -> None:
        match = re.search(r"step-(\d+)", str(path))
        if match is None:
            return
        step = int(match[1])
        counts[step] += 1
        if counts[step] == step:
            failed.append(step)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    options = {"checkpoint_every": 1, "checkpoint_keep": 99}
    with before_operations(kept, fail):
        run(tmp_path / "b", checkpoint=kept, save_params=tmp_path / "params", **options)
    assert failed == list(range(1, len(failed) + 1))
    assert 15 < len(failed) < 50
    err = capsys.readouterr().err
    names = {path.name for path in kept.iterdir()}
    for step in range(1, 61):
        warning = f"warning: the checkpoint of step {step} could not be written: "
        is_saved = f"step-{step:06d}" in names
        assert is_saved or step in failed
        assert (warning in err) is not is_saved
    assert len(names) < 60 - 15  # `mkdir` of a folder that exists may fail
    assert "No space left on device; the run continues" in err
    assert {name for name in names if not name.startswith("step-")} == {"best"}
    for name in names:
        Checkpoint(kept / name).verify()


def test_a_disk_that_stays_full_is_an_error_at_the_end(tmp_path):
    build(tmp_path)
    kept = tmp_path / "checkpoints"

    def fail(name: str, path: Path) -> None:
        if (kept / "step-000002").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    message = (
        r"the checkpoint of step 8 could not be written: .*No space left on device; "
        rf"the parameters are in {tmp_path}/params"
    )
    with before_operations(kept, fail), pytest.raises(RunError, match=message) as error:
        run(tmp_path / "b", checkpoint=kept, save_params=tmp_path / "params", **OPTIONS)
    assert "its last complete checkpoint is" in str(error.value.hint)
    assert (tmp_path / "params").exists()
    with locked(kept):
        assert [path.name for path in kept.iterdir()] == ["step-000002"]


def test_a_checkpoint_is_not_written_for_a_loss_that_is_not_finite(tmp_path):
    build(tmp_path)
    rows = dict(np.load(tmp_path / "rows.npz"))
    rows["x"][:] = np.nan
    np.savez(tmp_path / "rows.npz", **rows)
    kept = tmp_path / "checkpoints"
    with pytest.raises(RunError, match="the loss 'loss' is nan after step 1"):
        run(tmp_path / "b", checkpoint=kept, **{**OPTIONS, "checkpoint_every": 1})
    assert not list(kept.iterdir())


def test_a_disk_with_room_for_one_less_than_is_kept_loses_old_ones(tmp_path, capsys):
    build(tmp_path)
    kept = tmp_path / "checkpoints"

    def fail(name: str, path: Path) -> None:
        if name == "write" and len([*kept.glob("step-*")]) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    options = {"checkpoint_every": 2, "checkpoint_keep": 2, "steps": 20}
    # The last one fails if the nodes begin to write it before the old one is removed.
    with before_operations(kept, fail), suppress(RunError):
        run(tmp_path / "b", checkpoint=kept, **options)
    assert "the checkpoint of step 6 could not be written" in capsys.readouterr().err
    steps = [manifest.progress.step for _, manifest in list_checkpoints(kept)]
    assert 1 <= len(steps) <= 2
    assert steps[0] > 6
