"""Output for terminals without Unicode."""

from __future__ import annotations

import io
import sys

import pytest

from placer.command.console import echo


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "+- 8 bytes -> fc~\n"), ("utf-8", "├─ 8 bytes ─▶ fc…\n")],
)
def test_drawings_are_in_the_encoding_of_the_output(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    echo("├─ 8 bytes ─▶ fc…")
    assert written.getvalue().decode(encoding) == shown
