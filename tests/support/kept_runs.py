"""Runs of a folder, all of which must be readable."""

from __future__ import annotations

from pathlib import Path

from placer.report.run_files import Run, find_readable_runs


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in a folder, oldest first. Raise the error of a damaged run."""
    runs, errors = find_readable_runs(folder)
    if errors:
        raise errors[0]
    return runs
