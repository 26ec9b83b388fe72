"""The lines of user code of equations and of running calls, for messages."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


def source_line(eqn: Any) -> str:
    """Return the line of user code of an equation, such as ` (model.py:12)`."""
    trace = eqn.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        if _is_user_file(frame.file_name):
            return _format_line(frame.file_name, frame.line_num)
    return ""


def caller_line() -> str:
    """Return the line of user code that is running, such as ` (model.py:12)`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _is_user_file(frame.f_code.co_filename):
            return _format_line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def _is_user_file(file: str) -> bool:
    file = file.replace("\\", "/")
    return not any(part in file for part in _LIBRARIES) and "<" not in file


def _format_line(file: str, number: int) -> str:
    return f" ({file.replace(chr(92), '/').rpartition('/')[2]}:{number})"


_LIBRARIES = (
    "/site-packages/",
    "/placer/ops/functions/",
    "/placer/ops/transformations/",
    "/placer/place/",
)
