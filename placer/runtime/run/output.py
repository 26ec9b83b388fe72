"""What Python code prints in a node: into the node's log, and line by line to its launcher."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

LONGEST = 4000
"""Characters of a line that the launcher is given; the log has all of them."""


@contextmanager
def reported(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` with each line that is printed meanwhile, on standard output and on
    standard error, without its end. What is written to the descriptors themselves, and
    what JAX logs, goes to the log alone."""
    before = sys.stdout, sys.stderr
    handler, logger = logging.StreamHandler(sys.stderr), logging.getLogger("jax")
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    streams = [_Reporting(stream, report) for stream in before]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        for stream in streams:
            stream.end()
        sys.stdout, sys.stderr = before
        logger.propagate = propagates
        logger.removeHandler(handler)


class _Reporting:
    """A stream of text that also reports its lines."""

    def __init__(self, stream: TextIO, report: Callable[[str], None]) -> None:
        self._stream = stream
        self._report = report
        self._line = ""
        # A finalizer may print while this thread holds it.
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(text)
        if os.getpid() == self._process:  # a forked one has nobody who sends reports
            with self._lock:
                *lines, rest = (self._line + text).split("\n")
                returns = "\r" if rest.endswith("\r") else ""
                self._line = _visible(rest)[: LONGEST + 1] + returns
                for line in lines:
                    self._tell(line)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """Report the last line, if nothing ended it."""
        with self._lock:
            line, self._line = self._line, ""
            if line and os.getpid() == self._process:
                self._tell(line)

    def _tell(self, line: str) -> None:
        line = _visible(line)
        self._report(line if len(line) <= LONGEST else line[:LONGEST] + " …")


def _visible(line: str) -> str:
    """What is left of a line that goes back to its beginning, as a bar of progress."""
    return line.rstrip("\r").rpartition("\r")[2]
