"""Log folders of the newest failed runs are kept; only the user can read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from placer.launcher import logs
from placer.launcher.logs import MAX_KEPT, log_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "logs"


def failed_run(name: str, age: int) -> Path:
    with log_folder(None, name, Path("build")) as logs_of_run:
        (logs_of_run.folder / "worker-0.log").write_text("boom")
        logs_of_run.failed = True
    os.utime(logs_of_run.folder, (1e9 - age, 1e9 - age))
    return logs_of_run.folder


def test_a_failed_run_keeps_its_logs_for_the_user_only(cache: Path) -> None:
    def run() -> None:
        with log_folder(None, "model", Path("build")) as logs_of_run:
            (logs_of_run.folder / "worker-0.log").write_text("boom")
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run()
    (folder,) = cache.iterdir()
    assert (folder / "worker-0.log").read_text() == "boom"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_run_that_started_no_node_leaves_no_logs(cache: Path) -> None:
    with (
        pytest.raises(ValueError, match="boom"),
        log_folder(None, "model", Path("build")),
    ):
        raise ValueError("boom")
    assert list(cache.iterdir()) == []


def test_only_the_newest_logs_are_kept(cache: Path) -> None:
    folders = [failed_run("model", age) for age in range(MAX_KEPT + 5)]
    assert len(list(cache.iterdir())) == MAX_KEPT
    with log_folder(None, "model", Path("build")) as logs_of_run:
        left = set(cache.iterdir()) - {logs_of_run.folder}
    newest = set(folders[: MAX_KEPT - 1])
    assert left == newest


def test_other_folders_next_to_the_logs_are_not_removed(cache: Path) -> None:
    own = [cache / f"board-{i}" for i in range(MAX_KEPT + 5)]
    for folder in own:
        folder.mkdir(parents=True)
        (folder / "events").write_text("logs_of_run")
        os.utime(folder, (1, 1))
    for age in range(MAX_KEPT + 5):
        failed_run("model", age)
    assert all((folder / "events").read_text() == "logs_of_run" for folder in own)
    assert len(list(cache.iterdir())) == MAX_KEPT + len(own)


def test_logs_of_a_running_run_are_kept(cache: Path) -> None:
    with log_folder(None, "old", Path("build")) as logs_of_run:
        (logs_of_run.folder / "worker-0.log").write_text("still running")
        os.utime(logs_of_run.folder, (1, 1))
        for age in range(MAX_KEPT + 5):
            failed_run("model", age)
        assert (logs_of_run.folder / "worker-0.log").read_text() == "still running"


def test_logs_are_in_the_temporary_folder_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "user_cache", lambda: None)
    monkeypatch.setattr(logs.tempfile, "tempdir", str(tmp_path))
    with log_folder(None, "model", Path("build")) as logs_of_run:
        assert logs_of_run.folder.parent == tmp_path / f"placer-{os.getuid()}"
    # A folder of another user, or one that others can write, is not used.
    (tmp_path / f"placer-{os.getuid()}").chmod(0o777)
    with log_folder(None, "model", Path("build")) as logs_of_run:
        assert logs_of_run.folder.parent == tmp_path
    assert not logs_of_run.folder.exists()
