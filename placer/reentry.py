"""Refuses to compile or launch a model where that would start itself again and again.

Nodes import the modules of a spec. One that compiles or launches while it is imported
would do so in every node, whose nodes would do it again.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from placer.ast_lock import AST_LOCK
from placer.callsite import caller, shown, span_of
from placer.errors import PlacerError

VARIABLE = "PLACER_NODE"
"""Set in a node's process, and so in every process that it starts, to its name."""

_HINT = "put the call into a function, or under if __name__ == '__main__'"

_thread: ContextVar[str | None] = ContextVar("placer.node", default=None)
_processes: list[str] = []
_changing = threading.Lock()


@contextmanager
def in_thread(node: str) -> Iterator[None]:
    """This thread is a node meanwhile."""
    before = _thread.set(node)
    try:
        yield
    finally:
        _thread.reset(before)


@contextmanager
def in_process(node: str) -> Iterator[None]:
    """This process, whatever thread of it, is a node meanwhile."""
    with _changing:
        _processes.append(node)
        os.environ[VARIABLE] = node
    try:
        yield
    finally:
        with _changing:
            _processes.remove(node)
            if _processes:
                os.environ[VARIABLE] = _processes[-1]
            else:
                del os.environ[VARIABLE]


def refuse_in_node(what: str) -> None:
    """PlacerError where a node, or a process that it has started, calls `what`."""
    node = _thread.get() or os.environ.get(VARIABLE)
    if node is not None:
        raise PlacerError(
            f"{what} is called in node {node} of a run: a node imports the modules of"
            " its spec, and must start nothing itself",
            span=caller(),
            hint=_HINT,
        )


def refuse_at_import(what: str, folder: Path, modules: Collection[str]) -> None:
    """PlacerError where `what` is called by the top-level code of one of these modules
    of `folder`, which every node imports, outside of an `if` on `__name__`."""
    files = {(folder / f"{module}.py").resolve() for module in modules}
    frame: FrameType | None = sys._getframe(1)
    while files and frame is not None:
        file = frame.f_code.co_filename
        if (
            frame.f_code.co_name == "<module>"
            and Path(file).resolve() in files
            and not _is_guarded(Path(file), frame.f_lineno)
        ):
            raise PlacerError(
                f"{what} is called while {shown(file)} is imported, and every node"
                " imports it: each would start the run again",
                span=span_of(frame.f_code, frame.f_lasti, frame.f_lineno),
                hint=_HINT,
            )
        frame = frame.f_back


def _is_guarded(file: Path, line: int) -> bool:
    """Whether the line is in an `if` that asks for `__name__`."""
    try:
        with AST_LOCK:
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, ValueError, SyntaxError):
        return True  # not the code that runs; the nodes look at it again
    return any(
        isinstance(node, ast.If)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and any(
            isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test)
        )
        for node in nodes
    )
