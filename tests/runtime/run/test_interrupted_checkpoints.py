"""A crash or a full disk at any moment of writing a checkpoint leaves one to continue
from."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.checkpointed import build, check_equal, lines, run, spec
from support.file_operations import before_operations

from placer.checkpoint.folder import list_checkpoints, locked
from placer.checkpoint.reading import Checkpoint
from placer.errors import RunError

OPTIONS = {"checkpoint_every": 2, "checkpoint_keep": 1, "steps": 8}


@dataclass(frozen=True)
class Copy:
    """The files of a run as they were before a file operation."""

    operation: str
    checkpoints: Path
    history: Path


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A run that is left alone, and its files before each operation."""
    folder = tmp_path_factory.mktemp("copies")
    made: list[Copy] = []

    def copy(operation: str, path: Path) -> None:
        if not (folder / "history").exists():  # at the start
            return
        target = folder / f"copy{len(made)}"
        made.append(Copy(operation, target / "checkpoints", target / "history"))
        shutil.copytree(folder / "checkpoints", made[-1].checkpoints, symlinks=True)
        shutil.copy(folder / "history", target)

    build(folder)
    options = {"history": folder / "history", "save_params": folder / "params"}
    with before_operations(folder / "checkpoints", copy):
        run(folder / "b", checkpoint=folder / "checkpoints", **options, **OPTIONS)
    return folder, made


def test_a_crash_at_any_moment_leaves_the_last_complete_checkpoint(copies, tmp_path):
    folder, made = copies
    kept = tmp_path / "checkpoints"
    run(folder / "b", checkpoint=kept, **{**OPTIONS, "checkpoint_keep": 9})
    assert {copy.operation for copy in made} >= {"mkdir", "write", "fsync", "rename"}
    assert len(made) > 40
    steps = [0]
    for copy in made:
        listed = list_checkpoints(copy.checkpoints)
        for path, _ in listed:
            Checkpoint(path).verify()
            for file in path.glob("*.safetensors"):
                undisturbed = kept / path.name / file.name
                assert file.read_bytes() == undisturbed.read_bytes()
        steps.append(listed[0][1].progress.step if listed else 0)
    assert steps == sorted(steps)
    assert set(steps) == {0, 2, 4, 6, 8}


@pytest.mark.parametrize("moment", [0.5, 0.7])
def test_a_run_continues_after_a_crash(moment, copies):
    folder, made = copies
    copy = made[int(moment * len(made))]
    left = {path.name for path in copy.checkpoints.iterdir()}
    assert any(name.endswith(".tmp") for name in left)
    params = copy.checkpoints.with_name("params")
    run(
        folder / "b",
        resume=copy.checkpoints,
        checkpoint=copy.checkpoints,
        history=copy.history,
        save_params=params,
        **OPTIONS,
    )
    check_equal(params, folder / "params")
    assert lines(copy.history) == lines(folder / "history")
    assert [path.name for path in copy.checkpoints.iterdir()] == ["step-000008"]


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
    assert not [name for name in names if not name.startswith("step-")]
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
