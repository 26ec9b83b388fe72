"""The thread of a node that writes checkpoints and publications, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from placer.system.worker import Worker

FAILED_WAIT: Final = 5.0
"""Seconds that a failed run waits for the thread."""

Write = Callable[[], None]
"""Writes a checkpoint or a publication. It reports its own errors."""


class WritingThread:
    """Writes in the background while training continues, as a context manager.

    Args:
        name: the name of the node.
        waits: whether a failed run waits until the last file is written, because another
            attempt of the process follows.

    Attributes:
        locks: unlocks folders. The thread closes it at its end: after a failure, it may still write
            when the run no longer waits for it.
        has_failed: whether the run has failed. Nothing is committed any more.
    """

    def __init__(self, name: str, *, waits: bool) -> None:
        self.locks = ExitStack()
        self.has_failed = False
        self._waits = waits
        self._worker: Worker[Write] = Worker(
            lambda write: write(),
            f"placer checkpoints of {name}",
            bound=1,
            at_end=self.locks.close,
        )

    def __enter__(self) -> WritingThread:
        self._worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Another run of this process may already use the folder.
        self.has_failed = kind is not None
        self._worker.end()
        limited = kind is not None and not self._waits
        self._worker.join(FAILED_WAIT if limited else None)
        if kind is None:
            self._worker.check()

    @property
    def is_writing(self) -> bool:
        """Whether the last checkpoint or publication is still being written."""
        return not self._worker.is_idle

    def put(self, write: Write) -> None:
        """Write next; wait first until the last one is written."""
        self._worker.wait_until_idle()
        self._worker.put(write)

    def wait(self) -> None:
        """Wait until the last checkpoint or publication is written, or has failed."""
        self._worker.wait_until_idle()
