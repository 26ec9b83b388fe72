"""Which line outside of placer called into it: where an error of Python code points."""

from __future__ import annotations

import linecache
import os
import re
import sys
from itertools import islice
from types import CodeType, FrameType

from placer.errors import Span


def caller() -> Span:
    """The call, in code that is not placer's, that led here."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _is_placer(frame):
        frame = frame.f_back
    return span_of(frame.f_code, frame.f_lasti, frame.f_lineno)


def span_of(code: CodeType, instruction: int, line: int) -> Span:
    """What an instruction of a function was written as; the whole line where Python
    keeps no columns (`python -X no_debug_ranges`)."""
    file = code.co_filename
    text = linecache.getline(file, line).rstrip("\r\n")
    start, length = len(text) - len(text.lstrip()), len(text.strip())
    first, last, left, right = next(
        islice(code.co_positions(), max(instruction, 0) // 2, None),
        (None, None, None, None),
    )
    if first is not None and left is not None and right is not None:
        line = first
        text = linecache.getline(file, line).rstrip("\r\n")
        start = _characters(text, left)
        end = _characters(text, right) if last == first else len(text)
        length = end - start
    return Span(shown(file), line, start + 1, max(1, length), text)


def shown(file: str) -> str:
    """A path as a message shows it: relative where it lies in the working folder."""
    try:
        here = os.getcwd()
    except OSError:  # the folder is gone
        return file
    inside = file.startswith(here + os.sep)
    return file[len(here) + 1 :] if inside else file


def is_cell(file: str) -> bool:
    """Whether code of this file name stands in no file: in a cell of a notebook, or
    typed in. ipykernel names a cell by a file that it may or may not write."""
    folder = os.path.basename(os.path.dirname(file))
    return _KERNEL.fullmatch(folder) is not None or not os.path.isfile(file)


_KERNEL = re.compile(r"ipykernel_[0-9]+")


def _is_placer(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "placer"


def _characters(text: str, count: int) -> int:
    """How many characters the first `count` bytes of a line are."""
    return len(text.encode()[:count].decode(errors="replace"))
