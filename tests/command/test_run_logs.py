"""Logs of failed runs are kept, the newest of them, and for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from placer.launcher import logs
from placer.launcher.logs import KEPT, own_logs


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "logs"


def failed_run(name: str, age: int) -> Path:
    with own_logs(name) as mine:
        (mine.folder / "worker-0.log").write_text("boom")
        mine.failed = True
    os.utime(mine.folder, (1e9 - age, 1e9 - age))
    return mine.folder


def test_a_failed_run_keeps_its_logs_for_their_owner(cache: Path) -> None:
    def run() -> None:
        with own_logs("model") as mine:
            (mine.folder / "worker-0.log").write_text("boom")
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run()
    (folder,) = cache.iterdir()
    assert (folder / "worker-0.log").read_text() == "boom"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_run_that_started_no_node_leaves_nothing(cache: Path) -> None:
    with pytest.raises(ValueError, match="boom"), own_logs("model"):
        raise ValueError("boom")
    assert list(cache.iterdir()) == []


def test_only_the_newest_logs_are_kept(cache: Path) -> None:
    folders = [failed_run("model", age) for age in range(KEPT + 5)]
    assert len(list(cache.iterdir())) == KEPT
    with own_logs("model") as mine:
        left = set(cache.iterdir()) - {mine.folder}
    newest = set(folders[: KEPT - 1])
    assert left == newest


def test_other_folders_beside_the_logs_are_left_alone(cache: Path) -> None:
    own = [cache / f"board-{i}" for i in range(KEPT + 5)]
    for folder in own:
        folder.mkdir(parents=True)
        (folder / "events").write_text("mine")
        os.utime(folder, (1, 1))
    for age in range(KEPT + 5):
        failed_run("model", age)
    assert all((folder / "events").read_text() == "mine" for folder in own)
    assert len(list(cache.iterdir())) == KEPT + len(own)


def test_logs_of_a_run_that_goes_on_are_kept(cache: Path) -> None:
    with own_logs("old") as mine:
        (mine.folder / "worker-0.log").write_text("it goes on")
        os.utime(mine.folder, (1, 1))
        for age in range(KEPT + 5):
            failed_run("model", age)
        assert (mine.folder / "worker-0.log").read_text() == "it goes on"


def test_logs_lie_in_the_temporary_folder_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "user_cache", lambda: None)
    monkeypatch.setattr(logs.tempfile, "tempdir", str(tmp_path))
    with own_logs("model") as mine:
        assert mine.folder.parent == tmp_path / f"placer-{os.getuid()}"
    # Somebody else's folder, or one that others may write, is not used.
    (tmp_path / f"placer-{os.getuid()}").chmod(0o777)
    with own_logs("model") as mine:
        assert mine.folder.parent == tmp_path
    assert not mine.folder.exists()
