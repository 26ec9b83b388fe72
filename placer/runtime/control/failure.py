"""Reports the failure of a node to the other nodes and to the launcher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from placer.channel.cause import INTERRUPTED, DeadlineError
from placer.channel.interface import Aborted, Cause, Channel
from placer.errors import PlacerError, RunError, StreamError, missing_package_hint
from placer.runtime.control.divergence import DivergedError
from placer.runtime.control.error_lines import line_in_traceback, locate_error
from placer.runtime.control.events import Left, NodeFailure
from placer.runtime.control.execution import Execution


class FinalError(RunError):
    """An error that ends the run, also with `--restarts`."""


class NoFurtherError(FinalError):
    """Raised when a run must not begin another attempt, because it gets no further."""


@contextmanager
def root_cause_reported(execution: Execution) -> Iterator[None]:
    """Return a context manager that reports any exception as the root cause of the run."""
    channel = execution.channel
    try:
        yield
    except Aborted:
        raise
    except BaseException as error:
        what = describe_error(error, execution.folder)
        line = locate_error(execution.folder, execution.me.program, error.__traceback__)
        if line is not None and isinstance(error, Exception):
            what += f"\n  {line}"
        cause = cause_of(error, what, channel.node, execution.where())
        if isinstance(error, DeadlineError) and error.cause is not None:
            cause = error.cause
        if isinstance(error, DivergedError | NoFurtherError):
            cause = Cause("", "", what)  # a fault of the run, not of this node
        channel.abort(replace(cause, is_final=_ends_run(execution, error)))
        if isinstance(error, PlacerError | KeyboardInterrupt):
            raise
        raise RunError(str(cause)) from error


def _ends_run(execution: Execution, error: BaseException) -> bool:
    """Whether an error of this node ends the run instead of the attempt."""
    if not execution.options.restarts:
        return True
    if isinstance(error, FinalError | DivergedError) or not isinstance(
        error, Exception
    ):
        return True
    # An error of the program, the rows or the build would come again.
    may_pass = isinstance(error, DeadlineError | StreamError)
    return not execution.has_begun and not may_pass


def cause_of(error: BaseException, what: str, node: str = "", where: str = "") -> Cause:
    """Return the `Cause` of an error; `what` is the text of the error."""
    is_interruption = isinstance(error, KeyboardInterrupt)
    is_error = not (is_interruption or isinstance(error, DeadlineError))
    is_outage = isinstance(error, StreamError)
    return Cause(node, where, what, is_interruption, is_error, True, is_outage)


def describe_error(error: BaseException, folder: Path | None = None) -> str:
    """Describe an error in one or two lines.

    `folder` is the build folder: an error of a callback gets its line in a file there.
    """
    if isinstance(error, PlacerError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if hint := missing_package_hint(error):
        return f"{type(error).__name__}: {error}\n  hint: {hint}"
    text, has_trace, trace = f"{type(error).__name__}: {error}".partition(TRACEBACK)
    # XLA's message about a failed callback contains the whole Python traceback.
    if has_trace:
        text += next(filter(_RAISED, reversed(trace.splitlines())), "").strip()
        text += "" if folder is None else line_in_traceback(trace, folder)
    return text.strip()


TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[A-Za-z_][\w.]*: ").match
"""Matches the line of a traceback that names the exception."""


def failure_event(
    node: str, error: BaseException, channel: Channel | None, attempt: int = 0
) -> NodeFailure | Left:
    """Return the event of a failed node: `Left` if the failure ends only its attempt.

    `root` is false if another node caused the failure. `attempt` is 0 if every failure ends
    the run.
    """
    cause = cause_of(error, describe_error(error), node)
    if isinstance(error, Aborted):
        cause = error.cause
    elif channel is not None and channel.aborted is not None:
        cause = channel.aborted  # the same cause, with the position in the program
    is_root, message = not isinstance(error, Aborted), str(error)
    if cause.is_final or not attempt:
        return NodeFailure(cause, root=is_root, message=message)
    return Left(node, attempt, cause, root=is_root, message=message)
