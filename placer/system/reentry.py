"""Refuses to compile or launch a model inside a node, which would recurse forever.

Nodes import the modules of a spec. If a module starts a run while it is imported, every
node starts that run again, and so do the nodes of the new run.
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

from placer.errors import PlacerError
from placer.system.ast_lock import AST_LOCK
from placer.system.callsite import caller_span, display_path, span_of

NODE_VARIABLE = "PLACER_NODE"
"""The environment variable with the name of a node, in its process and its subprocesses."""

_HINT = "move the call into a function, or under if __name__ == '__main__'"

_UNSET_HINT = f"if this process is not a node, unset {NODE_VARIABLE}"

_thread: ContextVar[str | None] = ContextVar("placer.node", default=None)
_processes: list[str] = []
_changing = threading.Lock()


@contextmanager
def node_in_thread(node: str) -> Iterator[None]:
    """Mark this thread as a node during the context."""
    before = _thread.set(node)
    try:
        yield
    finally:
        _thread.reset(before)


@contextmanager
def node_in_process(node: str) -> Iterator[None]:
    """Mark this process and all its threads as a node."""
    with _changing:
        _processes.append(node)
        os.environ[NODE_VARIABLE] = node
    try:
        yield
    finally:
        with _changing:
            _processes.remove(node)
            if _processes:
                os.environ[NODE_VARIABLE] = _processes[-1]
            else:
                del os.environ[NODE_VARIABLE]


def refuse_in_node(call: str) -> None:
    """Raise PlacerError if a node, or a process that it started, makes this call."""
    node = _thread.get() or os.environ.get(NODE_VARIABLE)
    if node is not None:
        hint = _HINT if _thread.get() or _processes else f"{_HINT}; {_UNSET_HINT}"
        raise PlacerError(
            f"{call} is called in node {node} of a run, but a node must not "
            "start a run itself; it imports the modules of its spec",
            span=caller_span(),
            hint=hint,
        )


def refuse_at_import(call: str, folder: Path, modules: Collection[str]) -> None:
    """Raise PlacerError if top-level code of one of the `modules` in `folder` makes this
    call. Code inside an `if` that tests `__name__` is allowed."""
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
                f"{call} is called while {display_path(file)} is imported; every "
                "node imports it and would start the run again",
                span=span_of(frame.f_code, frame.f_lasti, frame.f_lineno),
                hint=_HINT,
            )
        frame = frame.f_back


def _is_guarded(file: Path, line: int) -> bool:
    """Return True if the line is inside an `if` that tests `__name__`."""
    try:
        with AST_LOCK:
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, ValueError, SyntaxError):
        return True  # This is not the source of the running code. Nodes check again.
    return any(
        isinstance(node, ast.If)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and any(
            isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test)
        )
        for node in nodes
    )
