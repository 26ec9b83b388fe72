"""Chooses the passes of a stream on the control node, and records them for later attempts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

from msgspec import structs

from placer.checkpoint.attempts import AttemptFiles, add_attempt, read_files
from placer.checkpoint.manifest import StreamPosition
from placer.errors import DataError
from placer.plan.data_positions import located, read_spans
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.stream import NOW
from placer.plan.settings.data.stream_pass import StreamPass
from placer.readers.streams import FileStream, changed_text, late_text
from placer.readers.streams.names import in_the_form_of, list_stream
from placer.runtime.batches.opened_sources import KEYS, TRAINING, reading_of
from placer.runtime.control.events import NodeWarning, Notice
from placer.runtime.control.execution import Execution
from placer.runtime.training_loop.lane_passes import (
    PASSES_ENDED,
    record_pass,
    recorded_passes,
)
from placer.system.owned_threads import END_LIMIT, OwnedThreads

OTHER_SET: Final = "'{}', the last trained file, is not in {}: files whose names come before it are late"
OFTEN: Final = 1.0
"""The shortest time between two listings of the files, in seconds."""
LISTING_SHARE: Final = 200.0
"""The time between two listings is at least so many times the time of a listing."""
AHEAD: Final = 2
"""The number of passes that are chosen before the first of them begins."""
GLANCE: Final = 0.05
"""The longest time that a chosen pass waits for the pass after it, in seconds."""


class ChosenPasses:
    """The passes of a stream, in order. A thread lists the files and reads their facts, which may
    take minutes.

    Args:
        execution: the run of the control node.
        data: the source.
        position: the position from which the run continues; None at the start of a stream.
        present: the pass in which the run continues, if it is in the middle of one.
        number: the number of the first pass after the position.
        trained: a file that the run has trained before it became a stream; empty for none.

    Attributes:
        start: the position in the form of the glob; None at the start of a stream.
        warned: the late and the changed files that the run has warned of.
    """

    def __init__(
        self,
        execution: Execution,
        data: RowSource,
        position: StreamPosition | None,
        present: StreamPass | None,
        number: int,
        trained: str = "",
    ) -> None:
        self._execution, self._data = execution, data
        self._number = number
        recorded = recorded_passes(execution)
        if present is not None and present.number not in recorded:
            record_pass(execution, present)
            recorded[present.number] = present
        # Passes of this command; the one that continues counts as well.
        count = execution.options.passes
        first = min(recorded, default=number)
        last = present.number if present is not None else number - 1
        reading = reading_of(execution, data, TRAINING)
        self.start = _in_the_form_of_glob(
            reading.data, reading.folder, position, trained
        )
        end = self.start.last if self.start is not None else ""
        if end and in_the_form_of(data, reading.folder, end) is None:
            execution.report(NodeWarning(OTHER_SET.format(end, data.source)))
        before = recorded.get(number - 1) if present is None else None
        self._spans = read_spans(execution.folder)
        with located(KEYS[TRAINING], self._spans):
            self._files = FileStream(
                reading.data,
                reading.used,
                reading.folder,
                self.start,
                until=execution.options.until,
                at_start=self._at_start(reading.data, reading.folder),
                passes_left=None if count is None else max(0, first + count - 1 - last),
                present=present or before,
                report=execution.report_rows,
            )
        if before is not None:
            self._files.end(before)
        self.warned = tuple(sorted(self._files.warned))
        self._has_ended = self._files.has_ended
        self._trains = present is not None or bool(recorded)
        self._chosen: deque[StreamPass] = deque()
        self._taken: StreamPass | None = None
        self._over: deque[StreamPass] = deque()  # taken passes whose steps are done
        self._looked = -inf  # the time of the last look in `take`
        self._threads = OwnedThreads()
        if present is not None:
            self._chosen.append(present)
        while self._number in recorded:
            self._add(recorded[self._number])

    def end(self) -> None:
        """Note that the last taken pass has ended, or that none has begun. The next call of `take`
        looks for files at once."""
        if self._taken is not None:
            self._over.append(self._taken)
        self._taken, self._looked = None, -inf

    def take(self, seconds: float) -> StreamPass | None:
        """Return the next pass, or None if it is not known after `seconds`.

        Raises:
            DataError: if a file of the pass cannot be read, or differs from earlier files.
        """
        now, names_are_fixed = time.monotonic(), self._execution.options.until == NOW
        pause = max(OFTEN, LISTING_SHARE * self._files.listing_seconds)
        if not self.is_looking and now >= self._looked + pause:
            self._looked = now
            self._begin(self._look_ahead if self._chosen else self._look)
        # Only the look for the pass after it says whether a pass of `now` is the last one.
        may_go_on = bool(self._chosen) and not names_are_fixed
        is_over = self._threads.join(GLANCE if may_go_on else seconds)
        self._threads.check()
        if not self._chosen or (names_are_fixed and not is_over):
            return None
        self._taken = self._chosen.popleft()
        return self._taken

    def peek(self) -> StreamPass | None:
        """Return the pass after the last taken one, if it is chosen."""
        return self._chosen[0] if self._chosen else None

    def begin_ahead(self) -> None:
        """Begin to choose the next passes as far as their files exist. `take` raises an error in
        them, after the pass before."""
        if not self.is_looking:
            self._begin(self._look_ahead)

    def close(self) -> None:
        """End the thread."""
        self._threads.join(END_LIMIT)

    def why_no_pass(self) -> tuple[str, bool]:
        """Return why no pass follows the last taken one now, and whether this is normal."""
        if self._files.passes_left <= 0:
            return PASSES_ENDED, True
        return self._files.why_no_pass()

    @property
    def is_looking(self) -> bool:
        """Whether the thread looks for files or reads them."""
        return not self._threads.join(0)

    @property
    def has_ended(self) -> bool:
        """Whether no pass of this command can follow the last taken one."""
        has_ended = self._has_ended  # the thread sets it after it has added a pass
        return has_ended and not self._chosen

    def _begin(self, look: Callable[[], None]) -> None:
        self._threads.begin(look, "placer next files of the stream")

    def _look(self) -> None:
        self._choose(1)
        self._look_ahead()

    def _look_ahead(self) -> None:
        with suppress(DataError):
            self._choose(AHEAD)

    def _choose(self, count: int) -> None:
        """Choose passes until `count` of them wait, or files are not there."""
        execution = self._execution
        while self._over:
            self._files.end(self._over.popleft())
        while len(self._chosen) < count:
            with located(KEYS[TRAINING], self._spans):
                found = self._files.next_pass(self._number)
                if found is None:
                    self._has_ended = self._files.is_last()
            self._trains |= found is not None
            # A checkpoint has the names in warnings, but not those of a command without a pass.
            is_end = self._has_ended and not self._trains
            for text in self._warnings():
                execution.report(Notice(text) if is_end else NodeWarning(text))
            self.warned = tuple(sorted(self._files.warned))
            if found is None:
                return
            record_pass(execution, found)
            self._number += 1
            self._chosen.append(found)
            self._has_ended = self._files.has_ended

    def _at_start(self, data: RowSource, folder: Path) -> frozenset[str] | None:
        """Return the files of `--until now` in a run that goes back after failures: those that
        were there when the run began, which the list of attempts has. None otherwise."""
        execution = self._execution
        settings, run = execution.checkpointing, execution.run
        if execution.options.until != NOW or not run or settings is None:
            return None
        names = read_files(settings.folder, run).get(TRAINING)
        if names is None:
            names = tuple(sorted(list_stream(data, folder)))
            add_attempt(settings.folder, AttemptFiles(run, {TRAINING: names}))
        return frozenset(names)

    def _add(self, recorded: StreamPass) -> None:
        self._files.take(recorded)
        self._chosen.append(recorded)
        self._number += 1
        self._has_ended = self._files.has_ended

    def _warnings(self) -> Sequence[str]:
        late, changed = self._files.late(), self._files.changed()
        texts = [late_text(self._data, late)] if late else []
        return [*texts, *([changed_text(self._data, changed)] if changed else [])]


def _in_the_form_of_glob(
    data: RowSource, folder: Path, position: StreamPosition | None, trained: str
) -> StreamPosition | None:
    """Return the position with the paths of the glob; with a `trained` file, the position after
    the only pass over this file."""
    if position is None:
        path = in_the_form_of(data, folder, trained) if trained else None
        if path is None:  # it is not a file of the stream
            return None
        file = folder / path
        sizes = {path: file.stat().st_size} if file.is_file() else {}
        return StreamPosition(StreamPass(1, ()), 0, sizes, path, 0, 0)
    last = in_the_form_of(data, folder, position.last)
    if last in (None, position.last):
        return position

    def path_of(path: str) -> str:
        return in_the_form_of(data, folder, path) or path

    return structs.replace(
        position,
        trained={path_of(path): size for path, size in position.trained.items()},
        last=last,
        warned=tuple(map(path_of, position.warned)),
    )
