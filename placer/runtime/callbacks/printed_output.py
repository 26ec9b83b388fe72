"""Sends text that Python code prints on a node to the log and, by line, to the launcher."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

MAX_LINE = 4000
"""The launcher receives up to this many characters of a line. The log contains all."""


@contextmanager
def report_output(report: Callable[[str], None]) -> Iterator[None]:
    """Return a context manager that calls `report` with each printed line.

    This covers `sys.stdout` and `sys.stderr`. Text that is written directly to the file
    descriptors goes only to the log, and so do log messages of JAX.
    """
    previous = sys.stdout, sys.stderr
    handler, logger = logging.StreamHandler(sys.stderr), logging.getLogger("jax")
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    streams = [_ReportingStream(stream, report) for stream in previous]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        for stream in streams:
            stream.end()
        sys.stdout, sys.stderr = previous
        logger.propagate = propagates
        logger.removeHandler(handler)


class _ReportingStream:
    """A text stream that also reports each line."""

    def __init__(self, stream: TextIO, report: Callable[[str], None]) -> None:
        self._stream = stream
        self._report = report
        self._line = ""
        # Reentrant, because a finalizer may print while this thread holds the lock.
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(text)
        if (
            os.getpid() == self._process
        ):  # a forked process has no thread to send reports
            with self._lock:
                *lines, rest = (self._line + text).split("\n")
                # Keep a final carriage return: later text may replace the line.
                returns = "\r" if rest.endswith("\r") else ""
                self._line = _visible(rest)[: MAX_LINE + 1] + returns
                for line in lines:
                    self._report_line(line)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """Report the last line if it lacks a line end."""
        with self._lock:
            line, self._line = self._line, ""
            if line and os.getpid() == self._process:
                self._report_line(line)

    def _report_line(self, line: str) -> None:
        line = _visible(line)
        self._report(line if len(line) <= MAX_LINE else line[:MAX_LINE] + " …")


def _visible(line: str) -> str:
    """Return the visible part of a line: the text after the last carriage return.

    Progress bars use carriage returns.
    """
    return line.rstrip("\r").rpartition("\r")[2]
