"""A file is written as a whole, and is on the disk with its name."""

from __future__ import annotations

import os
import stat
import tempfile

from placer.system.files.atomic import atomic_file, mode_of


def test_the_name_of_a_file_is_on_the_disk(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def note(descriptor):
        names = sorted(os.listdir(tmp_path))
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), names))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with atomic_file(tmp_path / "a", 0o644) as file:
        file.write(b"content")
    assert synced == [(False, []), (True, ["a"])]


def test_the_mode_of_a_new_file_does_not_change_the_mask_of_other_threads(
    tmp_path, monkeypatch
):
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.delattr(os, "umask")
            patch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
            assert mode_of(tmp_path / "new") == 0o640
    finally:
        os.umask(before)
