"""The passes of a Python stream: the control node counts them."""

from __future__ import annotations

from typing import Final

from placer.checkpoint.attempts import AttemptPass, add_attempt, read_passes
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.stream_pass import StreamPass
from placer.runtime.control.execution import Execution

LANES_ENDED: Final = "the function of the stream has ended"
PASSES_ENDED: Final = "all passes that 'passes' (--passes) allows are trained"


class LanePasses:
    """The passes of a Python stream, in order. All have the same number of rows.

    Args:
        execution: the run of the control node.
        data: the source.
        present: the pass in which the run continues, if it is in the middle of one.
        number: the number of the first pass after the position.
    """

    def __init__(
        self,
        execution: Execution,
        data: RowSource,
        present: StreamPass | None,
        number: int,
    ) -> None:
        assert data.stream is not None
        assert data.stream.rows is not None
        self._execution, self._present, self._number = execution, present, number
        self._rows = data.stream.rows // data.batch * data.batch
        recorded = recorded_passes(execution)
        if present is not None and present.number not in recorded:
            record_pass(execution, present)
            recorded[present.number] = present
        self._recorded = max(recorded, default=0)
        first = min(recorded, default=number)
        count = execution.options.passes
        self._last = first + count - 1 if count is not None else None

    def take(self) -> StreamPass:
        """Return the next pass."""
        present, self._present = self._present, None
        if present is not None:
            return present
        found = StreamPass(self._number, (), rows_of_lanes=self._rows)
        if found.number > self._recorded:
            record_pass(self._execution, found)
        self._number += 1
        return found

    @property
    def has_ended(self) -> bool:
        """Whether no pass of this command can follow the last taken one."""
        if self._present is not None or self._last is None:
            return False
        return self._number > self._last


def recorded_passes(execution: Execution) -> dict[int, StreamPass]:
    """Return the passes that earlier attempts of the run have announced, by number."""
    settings = execution.checkpointing
    if not execution.run or settings is None:
        return {}
    return read_passes(settings.folder, execution.run)


def record_pass(execution: Execution, found: StreamPass) -> None:
    """Record a pass for later attempts of the run."""
    settings = execution.checkpointing
    if execution.run and settings is not None:
        add_attempt(settings.folder, AttemptPass(execution.run, found))
