"""The root cause of a failed run, as nodes tell each other and their launcher."""

from __future__ import annotations

from typing import Final

import msgspec

from placer.errors import RunError

INTERRUPTED: Final = "it was interrupted"
"""What a node reports as the cause if it has ended the run because of a signal."""


class Cause(msgspec.Struct, frozen=True):
    """The root cause of a failed run: which node failed, where, and what happened; and
    whether the node has ended the run because of a signal."""

    node: str
    where: str
    what: str
    is_interruption: bool = False

    def __str__(self) -> str:
        return ": ".join(part for part in (self.node, self.where, self.what) if part)


class Aborted(RunError):  # noqa: N818 - what happened to the run, not to the call
    """The run has failed, here or on another node; `cause` is the root cause."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(str(cause))
        self.cause = cause


class DeadlineError(RunError):
    """A wait took longer than the deadline. `cause` is the root cause as far as it is
    known: what the node did that all others wait for; None if it is not."""

    def __init__(self, text: str, cause: Cause | None) -> None:
        super().__init__(text, hint="a longer --deadline waits longer")
        self.cause = cause
