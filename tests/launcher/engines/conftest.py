"""Fixtures of the tests of engines."""

from __future__ import annotations

import pytest


@pytest.fixture
def engine_here(tmp_path, monkeypatch):
    """Install the engine `here` of another package."""
    info = tmp_path / "site" / "engine_here-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-here\n")
    (info / "entry_points.txt").write_text(
        "[placer.engines]\nhere = support.engines.here\nnone = json\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
