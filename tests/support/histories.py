"""Reads the files of `--history` for comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines_without_times(history: Path) -> list[dict[str, Any]]:
    """Return the lines of a history but for their `seconds`, which differ between
    runs."""
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    for line in lines:
        assert line.pop("seconds") > 0
    return lines


def read_losses(history: Path) -> list[float]:
    """Return the loss of each training step in a history."""
    lines = map(json.loads, history.read_text().splitlines())
    return [line["metrics"]["loss"] for line in lines if "metrics" in line]
