"""Data sets that no package has: a test that needs one is skipped where it is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(
    os.environ.get("PLACER_TEST_DATA", Path(__file__).parents[3] / "shared" / "data")
)
"""PLACER_TEST_DATA, or a folder beside the checkout."""
FILES = {"adult": ("adult.data", "adult.test.gz")}
"""The files of `FOLDER` that specs read, by the name of the spec."""


def find_data(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs of a test find the rows of a spec; skip it if they are not there."""
    if spec in FILES:
        for file in FILES[spec]:
            if not (FOLDER / file).is_file():
                pytest.skip(f"there is no {file}: see specs/{spec}.yaml")
        monkeypatch.setenv("PLACER_DATA", str(FOLDER))
