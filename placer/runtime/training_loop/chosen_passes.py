"""Chooses the passes of a stream on the control node, and records them for later attempts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from placer.checkpoint.attempts import (
    AttemptFiles,
    AttemptPass,
    add_attempt,
    read_files,
    read_passes,
)
from placer.checkpoint.manifest import StreamPosition
from placer.errors import DataError
from placer.plan.data_positions import located, read_spans
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.stream_pass import StreamPass
from placer.readers.streams import FileStream, changed_text, late_text
from placer.readers.streams.file_stream import NOW
from placer.readers.streams.names import in_the_form_of, list_stream
from placer.runtime.batches.opened_sources import KEYS, TRAINING, reading_of
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution

OTHER_SET: Final = "'{}', the last trained file, is not in {}: files whose names come before it are late"
OFTEN: Final = 1.0
"""The shortest time between two listings of the files, in seconds."""
LISTING_SHARE: Final = 200.0
"""The time between two listings is at least so many times the time of a listing."""


class ChosenPasses:
    """The passes of a stream, in order.

    Args:
        execution: the run of the control node.
        data: the source.
        position: the position from which the run continues; None at the start of a stream.
        present: the pass in which the run continues, if it is in the middle of one.
        number: the number of the first pass after the position.
        trained: a file that the run has trained before it became a stream; empty for none.

    Attributes:
        trained, last: as in `StreamPosition`, at the beginning.
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
        recorded = _recorded(execution)
        if present is not None and present.number not in recorded:
            self._record(present)
            recorded[present.number] = present
        # Passes of this command; the one that continues counts as well.
        count = execution.options.passes
        first = min(recorded, default=number)
        last = present.number if present is not None else number - 1
        reading = reading_of(execution, data, TRAINING)
        self.trained, self.last = _trained_before(
            reading.data, reading.folder, position, trained
        )
        if self.last and in_the_form_of(data, reading.folder, self.last) is None:
            execution.report(NodeWarning(OTHER_SET.format(self.last, data.source)))
        before = recorded.get(number - 1) if present is None else None
        self._spans = read_spans(execution.folder)
        with located(KEYS[TRAINING], self._spans):
            self._files = FileStream(
                reading.data,
                reading.used,
                reading.folder,
                self.trained,
                self.last,
                until=execution.options.until,
                at_start=self._at_start(reading.data, reading.folder),
                passes_left=None if count is None else max(0, first + count - 1 - last),
                earlier=position.current.files[0] if position is not None else None,
                warned=position.warned if position is not None else (),
                present=present or before,
                report=execution.report_rows,
            )
        if before is not None:
            self._files.end(before)
        self._chosen: deque[StreamPass] = deque()
        self._taken: StreamPass | None = None
        if present is not None:
            self._chosen.append(present)
        while self._number in recorded:
            self._add(recorded[self._number])

    @property
    def pause(self) -> float:
        """The seconds until the files should be listed again."""
        return max(OFTEN, LISTING_SHARE * self._files.listing_seconds)

    @property
    def warned(self) -> tuple[str, ...]:
        """The late and the changed files that the run has warned of."""
        return tuple(sorted(self._files.warned))

    def take(self) -> StreamPass | None:
        """Return the next pass, once the one before has ended; None if its files are not there
        yet, or it cannot follow."""
        if self._taken is not None:
            self._files.end(self._taken)
        self._choose(1)
        self._taken = self._chosen.popleft() if self._chosen else None
        return self._taken

    def peek(self) -> StreamPass | None:
        """Return the pass after the last taken one, if its files exist. An error in them is
        raised by `take`, after the pass before."""
        self.look_ahead(1)
        return self._chosen[0] if self._chosen else None

    def look_ahead(self, count: int = 2) -> None:
        """Choose the next passes as far as their files exist."""
        with suppress(DataError):
            self._choose(count)

    def why_no_pass(self) -> str:
        """Return why no pass follows the last taken one now."""
        return self._files.why_no_pass()

    @property
    def has_ended(self) -> bool:
        """Whether no pass of this command can follow the last taken one."""
        if self._chosen:
            return False
        with located(KEYS[TRAINING], self._spans):
            return self._files.is_last()

    def _choose(self, count: int) -> None:
        """Choose passes until `count` of them wait, or files are not there."""
        execution = self._execution
        while len(self._chosen) < count:
            with located(KEYS[TRAINING], self._spans):
                found = self._files.next_pass(self._number)
            for text in self._warnings():
                execution.report(NodeWarning(text))
            if found is None:
                return
            self._record(found)
            self._number += 1
            self._chosen.append(found)

    def _record(self, stream_pass: StreamPass) -> None:
        """Record a pass for later attempts of the run."""
        execution, settings = self._execution, self._execution.checkpointing
        if execution.run and settings is not None:
            add_attempt(settings.folder, AttemptPass(execution.run, stream_pass))

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

    def _warnings(self) -> Sequence[str]:
        late, changed = self._files.late(), self._files.changed()
        texts = [late_text(self._data, late)] if late else []
        return [*texts, *([changed_text(self._data, changed)] if changed else [])]


def _trained_before(
    data: RowSource, folder: Path, position: StreamPosition | None, trained: str
) -> tuple[Mapping[str, int], str]:
    """Return the files that are trained, and the last one in turn, in the form of the glob."""
    if position is None:
        path = in_the_form_of(data, folder, trained) if trained else None
        if path is None:  # it is not a file of the stream
            return {}, ""
        file = folder / path
        return {path: file.stat().st_size} if file.is_file() else {}, path
    if in_the_form_of(data, folder, position.last) in (None, position.last):
        return position.trained, position.last
    sizes = {
        in_the_form_of(data, folder, path) or path: size
        for path, size in position.trained.items()
    }
    return sizes, in_the_form_of(data, folder, position.last) or position.last


def _recorded(execution: Execution) -> dict[int, StreamPass]:
    """Return the passes that earlier attempts of the run have announced, by number."""
    settings = execution.checkpointing
    if not execution.run or settings is None:
        return {}
    return read_passes(settings.folder, execution.run)
