"""Texts of warnings about files of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from placer.plan.settings.data.source import Data
from placer.system.listed import list_names

_MOST: Final = 3
"""The number of files that a warning names."""


def late_text(data: Data, paths: Sequence[str]) -> str:
    """Return the warning about files whose names come before the last trained one."""
    assert data.stream is not None
    many = len(paths) > 1
    if data.stream.late == "skip":
        fate = f"{'they are' if many else 'it is'} not trained"
    elif many:
        fate = "they are the next pass once they fill a batch"
    else:
        fate = "it is the next pass once it fills a batch"
    return f"{_named(data, paths)} {'are' if many else 'is'} late; {fate}"


def changed_text(data: Data, paths: Sequence[str]) -> str:
    """Return the warning about files that have another size than when they were trained."""
    has = "have" if len(paths) > 1 else "has"
    was = "they were" if len(paths) > 1 else "it was"
    return f"{_named(data, paths)} {has} changed after {was} trained"


def _named(data: Data, paths: Sequence[str]) -> str:
    kind = data.parsed.kind
    return list_names([f"{kind}:{path}" for path in paths], _MOST)
