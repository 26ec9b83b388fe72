"""Files and folders that cannot be written are found before anything is computed."""

from __future__ import annotations

import os

import pytest

from placer.errors import PlacerError
from placer.system.files.writable import check_can_create, why_not_writable


def test_a_folder_below_one_without_permission_cannot_be_created(tmp_path, monkeypatch):
    check_can_create(tmp_path / "a" / "b")
    assert not why_not_writable(tmp_path / "a", replaces=True)
    (tmp_path / "old").write_text("")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != tmp_path and access(path, mode)
    )
    with pytest.raises(PlacerError, match=f"'{tmp_path}' is not writable"):
        check_can_create(tmp_path / "a" / "b")
    old, new = tmp_path / "old", tmp_path / "new"
    assert (
        why_not_writable(old, replaces=True)
        == f"the folder '{tmp_path}' is not writable"
    )
    assert not why_not_writable(old, replaces=False)
    assert (
        why_not_writable(new, replaces=False)
        == f"the folder '{tmp_path}' is not writable"
    )


def test_a_folder_below_a_file_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlacerError, match="file' is not a folder"):
        check_can_create(tmp_path / "file" / "folder")
