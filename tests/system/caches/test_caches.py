"""The size of the user's cache of compiled code is bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from placer.system.caches.folder import trim_caches


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path))
    return tmp_path


def put(file: Path, size: int, used: float) -> Path:
    """Write a file that was last used `used` seconds ago, and written long before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(size))
    os.utime(file, (time.time() - used, 1))
    return file


def test_least_recently_used_code_is_removed(cache: Path) -> None:
    files = [
        put(cache / "xla-1-a" / "jit_f-cache", 40, used=10),
        put(cache / "kernels" / "kernels_1" / "k.1.nbc", 40, used=20),
        put(cache / "xla-2-b" / "jit_f-cache", 40, used=30),
        put(cache / "kernels" / "kernels_1" / "k.nbi", 40, used=40),
    ]
    others = [
        put(cache / "kernels" / "notes.txt", 400, used=90),
        put(cache / "logs" / "model-x" / "a-cache", 400, used=90),
    ]
    trim_caches(limit=100)
    assert [file.exists() for file in files] == [True, True, False, False]
    assert all(file.exists() for file in others)


def test_size_is_checked_once_per_interval(cache: Path) -> None:
    first = put(cache / "kernels" / "k.nbi", 40, used=10)
    trim_caches(limit=100)
    trim_caches(limit=0)
    assert first.exists()
    os.utime(cache / "looked", (1, 1))
    trim_caches(limit=0)
    assert not first.exists()


@pytest.mark.parametrize("cached", ["missing/folder", "file"])
def test_missing_cache_folder_is_not_an_error(
    cached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLACER_CACHE", str(tmp_path / cached))
    trim_caches(limit=0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
