"""What a node tells its launcher: JSON lines on a pipe (or to nobody)."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

Report = Callable[[dict[str, Any]], None]
"""Takes one event; see `placer.launcher` for what is made of them."""


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as JSON has numbers: what is not finite is null."""
    return {k: v if math.isfinite(v) else None for k, v in metrics.items()}


def nobody(event: dict[str, Any]) -> None:
    """The report of a node that no launcher watches."""


class Pipe:
    """Writes events to a pipe's end. A broken pipe means that the launcher is gone:
    `on_broken` is then called, once, from the writing thread."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._broken = False

    def __call__(self, event: dict[str, Any]) -> None:
        line = (json.dumps(event) + "\n").encode()
        with self._lock:
            if self._broken:
                return
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self._broken = True
        if self._broken:
            self._on_broken()
