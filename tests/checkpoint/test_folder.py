"""A folder of checkpoints holds complete checkpoints, and nothing else that is used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.checkpoints import write_checkpoint

from placer.checkpoint.choice import check_has_some, last_good
from placer.checkpoint.folder import (
    broken_checkpoints,
    check_best_is_free,
    link_best,
    list_checkpoints,
    locked,
    remove_old,
    set_best,
)
from placer.checkpoint.manifest import Watched
from placer.checkpoint.reading import Checkpoint
from placer.errors import CheckpointError
from placer.report.checkpoints import find_checkpoints


def names(folder: Path) -> list[str]:
    return [path.name for path, _ in list_checkpoints(folder)]


def test_the_last_written_checkpoint_comes_first(tmp_path):
    for step, sequence in ((10, 1), (20, 2), (15, 3)):
        write_checkpoint(tmp_path, step, sequence)
    assert names(tmp_path) == ["step-000015", "step-000020", "step-000010"]


def test_a_checkpoint_of_the_same_step_does_not_replace_another(tmp_path):
    write_checkpoint(tmp_path, 10, 1)
    write_checkpoint(tmp_path, 10, 2)
    assert names(tmp_path) == ["step-000010-2", "step-000010"]


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    best = write_checkpoint(tmp_path, 10, 1)
    set_best(tmp_path, best)
    for sequence in range(2, 6):
        write_checkpoint(tmp_path, 10 * sequence, sequence)
    remove_old(tmp_path, 2)
    assert names(tmp_path) == ["step-000050", "step-000040", "step-000010"]
    assert (tmp_path / "best").resolve() == best
    set_best(tmp_path, tmp_path / "step-000050")
    remove_old(tmp_path, 2)
    assert names(tmp_path) == ["step-000050", "step-000040"]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, "elsewhere"])
def test_the_best_one_is_kept_beside_an_entry_of_its_name(make, tmp_path):
    """A file, a folder or a link of the user's: it is neither replaced nor followed."""
    entry = tmp_path / "best"
    entry.symlink_to(make) if isinstance(make, str) else make(entry)
    mode = entry.lstat().st_mode
    best = Watched("loss", "min", 0.5, step=10)
    write_checkpoint(tmp_path, 10, 1, best=best)
    for sequence in range(2, 6):
        later = replace(best, since=sequence - 1)
        write_checkpoint(tmp_path, 10 * sequence, sequence, best=later)
    remove_old(tmp_path, 1)
    assert names(tmp_path) == ["step-000050", "step-000010"]
    assert [each.is_best for each in find_checkpoints(tmp_path, verify=False)] == [
        False,
        True,
    ]
    for write in (link_best, lambda folder, _: check_best_is_free(folder)):
        with pytest.raises(
            CheckpointError, match="best' is not a link to a che"
        ) as caught:
            write(tmp_path, best)
        assert "rename the file, or name another folder" in caught.value.hint
    assert entry.lstat().st_mode == mode


def test_only_one_run_writes_to_a_folder(tmp_path):
    message = "another run writes checkpoints"
    with locked(tmp_path), pytest.raises(CheckpointError, match=message):
        locked(tmp_path).__enter__()
    with locked(tmp_path):
        pass


def test_the_next_run_removes_what_a_crash_has_left(tmp_path):
    kept = write_checkpoint(tmp_path, 10, 1)
    (tmp_path / "notes").mkdir()
    for name in (".step-000020.0a1b.tmp", ".step-000010-2.old.tmp"):
        shutil.copytree(kept, tmp_path / name)
    assert names(tmp_path) == ["step-000010"]
    (tmp_path / ".run-0a1b.tmp").write_text("0a1b")
    (tmp_path / ".best.tmp").symlink_to("step-000010")
    with locked(tmp_path):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-000010", "notes"}


@pytest.mark.parametrize("name", ["step-000010", "copied"])
def test_a_checkpoint_without_its_manifest_is_said_to_be_incomplete(name, tmp_path):
    path = write_checkpoint(tmp_path, 10, 1).rename(tmp_path / name)
    (path / "manifest.json").unlink()
    for find in (
        lambda: last_good(path, print),
        lambda: list(find_checkpoints(path, verify=True)),
    ):
        with pytest.raises(CheckpointError, match="is an incomplete checkpoint"):
            find()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "model.safetensors").write_text("")
    with pytest.raises(CheckpointError, match="others' has no checkpoints"):
        last_good(tmp_path / "others", print)


def test_the_folder_of_a_run_has_a_hint_that_names_its_checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    write_checkpoint(tmp_path / "checkpoints", 10, 1)
    for find in (
        lambda: last_good(tmp_path, print),
        lambda: list(find_checkpoints(tmp_path, verify=True)),
        lambda: check_has_some(tmp_path),
    ):
        with pytest.raises(CheckpointError, match="' has no checkpoints") as error:
            find()
        assert error.value.hint == f"did you mean '{tmp_path}/checkpoints'?"
    check_has_some(tmp_path / "checkpoints")
    check_has_some(tmp_path / "checkpoints" / "step-000010")


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written to"):
        locked(tmp_path / "file" / "folder").__enter__()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a checkpoint: it has no manifest"),
        (b"", "is damaged"),
        (b"[1]", "is damaged"),
        (b'{"version": 6}', "has version 6 of the checkpoint format"),
        (b'{"version": 1}', "is damaged"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_clear_error(content, message, tmp_path):
    path = write_checkpoint(tmp_path, 10, 1)
    (path / "manifest.json").unlink()
    if content is not None:
        (path / "manifest.json").write_bytes(content)
    assert names(tmp_path) == []
    ((broken, error),) = broken_checkpoints(tmp_path)
    assert broken == path
    assert message in error.message
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(path)
