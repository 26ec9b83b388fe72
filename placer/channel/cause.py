"""The root cause of a failed run, as reported between nodes and to their launcher."""

from __future__ import annotations

from typing import Final

import msgspec

from placer.errors import RunError

INTERRUPTED: Final = "it was interrupted"
"""The cause that a node reports if it has ended the run because of a signal."""


class Cause(msgspec.Struct, frozen=True):
    """The root cause of a failed run.

    Attributes:
        node: the node that failed.
        where: the position of the node, such as `step 5`.
        what: the error.
        is_interruption: whether the node has ended the run because of a signal.
        is_error: whether the node's own code has raised the error, so that it may come again.
            Otherwise the node was lost.
        is_final: whether the failure ends the run, and not only its present attempt.
        is_outage: whether the function of a stream has raised the error: its source may come back.
    """

    node: str
    where: str
    what: str
    is_interruption: bool = False
    is_error: bool = False
    is_final: bool = False
    is_outage: bool = False

    def __str__(self) -> str:
        return ": ".join(part for part in (self.node, self.where, self.what) if part)


class Aborted(RunError):  # noqa: N818 - names the state of the run
    """The run has failed, here or on another node; `cause` is the root cause."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(str(cause))
        self.cause = cause


class DeadlineError(RunError):
    """A wait took longer than the deadline.

    Attributes:
        cause: the root cause: the activity of the node that blocks all other nodes. None
            if it is not known.
    """

    def __init__(self, text: str, cause: Cause | None) -> None:
        super().__init__(text, hint="to wait longer, raise --deadline")
        self.cause = cause
