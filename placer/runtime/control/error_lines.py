"""Maps an error to a line of the node program and to the ops of the spec on that line."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from placer.errors import BuildError
from placer.plan.plan import read_sources


def locate_error(folder: Path, program: str, trace: TracebackType | None) -> str | None:
    """Return the position of an error in a node program, with the ops of the spec.

    Args:
        folder: the build folder.
        program: the path of the node program, relative to the build folder.
        trace: the traceback of the error.

    Returns:
        Text such as `at worker-0/program.py:32, forward: op h1 at digits.yaml:28:16`. The
        ops are missing if the build's sources do not name them. None if the traceback does
        not contain the program.
    """
    file, line = str((folder / program).absolute()), None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return None if line is None else describe_line(folder, program, line)


def line_in_traceback(text: str, folder: Path) -> str:
    """Return the innermost line of a build's file in the text of a traceback.

    It has the form ` (model.py:12)`, and is empty if no file of the build is in the text.
    """
    file = re.escape(f"{folder.absolute()}/")
    lines = re.findall(rf'File "{file}([^"]+)", line (\d+)', text)
    return " ({}:{})".format(*lines[-1]) if lines else ""


def describe_line(folder: Path, program: str, line: int) -> str:
    """Return the text of `locate_error` for a line of the program.

    The ops come from a table that the compiler wrote. It is still valid, because a node
    refuses to run a changed program.
    """
    text = f"at {program}:{line}"
    try:
        sources = read_sources(folder)
    except BuildError:
        return text
    function, *ops = sources.lines.get(program, {}).get(line, ("",))
    file = Path(sources.spec).name
    written = [
        "{} at {}:{}:{}".format(op, file, *sources.ops[op])
        for op in ops
        if op in sources.ops
    ]
    if function:
        text += f", {function}"
    if not written:
        return text
    return f"{text}: {'op' if len(written) == 1 else 'ops'} {' to '.join(written)}"
