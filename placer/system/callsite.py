"""Finds the line outside of placer that called into it, for errors and warnings."""

from __future__ import annotations

import linecache
import os
import re
import sys
import warnings
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from placer.errors import Span, SpecError


def caller_span() -> Span:
    """Return the span of the innermost call in code outside of placer."""
    frame = _caller()
    return span_of(frame.f_code, frame.f_lasti, frame.f_lineno)


def call_error(message: str, hint: str | None = None) -> SpecError:
    """Return an error at the innermost call in code outside of placer."""
    return SpecError(message, span=caller_span(), hint=hint)


def warn_at_caller(message: str, category: type[Warning]) -> None:
    """Warn at the innermost call in code outside of placer."""
    frame = _caller()
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def span_of(code: CodeType, instruction: int, line: int) -> Span:
    """Return the source span of an instruction of a code object. It is the whole line
    if Python has no columns (`python -X no_debug_ranges`)."""
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
    return Span(display_path(file), line, start + 1, max(1, length), text)


def display_path(file: str) -> str:
    """Return a path as it is shown in messages: relative if in the working folder. A
    cell has the name that IPython gives it, `Cell In[3]`."""
    if cell := _cell_name(file):
        return cell
    try:
        here = os.getcwd()
    except OSError:  # the folder was deleted
        return file
    inside = file.startswith(here + os.sep)
    return file[len(here) + 1 :] if inside else file


def is_cell(file: str) -> bool:
    """Return True if the code is in no file: it is a notebook cell or was typed in.
    ipykernel gives cells file names, and it may or may not write these files."""
    folder = os.path.basename(os.path.dirname(file))
    return _KERNEL.fullmatch(folder) is not None or not os.path.isfile(file)


def session_name() -> str:
    """Return a name for models that are defined in cells: the name of the notebook's
    file. VS Code and Jupyter Server tell the kernel the path of the notebook. For other
    kernels the name is `notebook`, and for an interactive session it is `session`."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__vsc_ipynb_file__", None) or os.environ.get(
        "JPY_SESSION_NAME", ""
    )
    stem, ending = os.path.splitext(os.path.basename(str(file)))
    if ending == ".ipynb":
        return stem
    return "notebook" if "ipykernel" in sys.modules else "session"


def _cell_name(file: str) -> str | None:
    """Return IPython's name of the cell that was compiled as `file`, or None."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    # Earlier versions than IPython 8 do not have it and show the file name.
    name_code = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = name_code and name_code(file)
    return " ".join(found) if found else None


_KERNEL = re.compile(r"ipykernel_[0-9]+")


def _caller() -> FrameType:
    """Return the frame of the innermost call in code outside of placer."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _is_placer(frame):
        frame = frame.f_back
    return frame


def _is_placer(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    # Functions of contextlib are between placer's context managers and their callers.
    return name.partition(".")[0] in ("placer", "contextlib")


def _characters(text: str, count: int) -> int:
    return len(text.encode()[:count].decode(errors="replace"))
