"""Chooses the files of the passes of a stream, on the control node."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from itertools import groupby, takewhile
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Final

from placer.checkpoint.manifest import StreamPosition
from placer.errors import DataError
from placer.plan.settings.data.columns import Column, natural_key
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.stream import NOW, Stream
from placer.plan.settings.data.stream_pass import PassFile, StreamPass
from placer.readers.arguments import ReadOptions, ignore_progress
from placer.readers.file_errors import file_errors
from placer.readers.file_sets import request_file
from placer.readers.source import make_request
from placer.readers.streams.checks import check_same_columns
from placer.readers.streams.contents import COMPLETE
from placer.readers.streams.facts import read_facts
from placer.readers.streams.names import list_stream, unit_of
from placer.readers.streams.until import check_not_before, find_until
from placer.system.files.globs import matching_files

_TRIES: Final = 3
"""The number of times that names are listed again because a file has vanished."""
_SIZES: Final = 1000
"""The number of trained files whose sizes are compared after each listing, in turn."""

_Key = tuple[str, str]


class FileStream:
    """The files of a stream. One thread uses it at a time.

    Attributes:
        trained: the size of each file of the chosen passes and of those before, by path.
        last: the last name of a pass in turn.
        passes_left: the largest number of further passes.
        warned: the late and the changed files that were found so far.
        listing_seconds: the time that the last listing took.
    """

    def __init__(
        self,
        data: RowSource,
        columns: Sequence[Column],
        folder: Path,
        position: StreamPosition | None = None,
        *,
        until: str | None = None,
        at_start: Set[str] | None = None,
        passes_left: int | None = None,
        present: StreamPass | None = None,
        report: Callable[[int], None] = ignore_progress,
    ) -> None:
        """List the files.

        Args:
            data: the settings of the stream; `data.columns` names only inputs of `columns`.
            columns: the inputs that any process reads.
            folder: the folder that paths are relative to.
            position: the position after the last trained pass, whose columns all files must have.
                Its paths are those of the glob. None at the start of a stream.
            until: `now`, the name of the last file or folder, or None.
            at_start: the files that count for `now`; by default, those that exist.
            passes_left: the largest number of passes to choose, or None.
            present: the pass in which the run continues, or that it has just ended.
            report: called with the number of rows of a `csv:` file counted so far.

        Raises:
            DataError: if `until` is not valid, or a folder cannot be listed.
        """
        self._data, self._folder = data, folder
        self._request = make_request(data, columns, folder, ReadOptions(report=report))
        self.trained: dict[str, int] = {}
        self.last, self.warned = "", set[str]()
        self._earlier: PassFile | None = None
        if position is not None:
            self.trained, self.last = dict(position.trained), position.last
            self.warned = set(position.warned)
            self._earlier = next(iter(position.current.files), None)
        self.listing_seconds = 0.0
        self.passes_left = inf if passes_left is None else passes_left
        self._facts: dict[str, tuple[tuple[int, int, int], PassFile]] = {}
        self._keys: dict[str, tuple[_Key, _Key]] = {}
        self._late: list[str] = []
        self._changed: list[str] = []
        compared = [path for path in self.trained if path not in self.warned]
        self._to_compare = deque(reversed(compared))
        self._under_way: set[str] = set()
        self._at_start: Set[str] | None = None
        self._until, self._is_reached = None, False
        if until == NOW:
            self._at_start = list_stream(data, folder) if at_start is None else at_start
        elif until is not None:
            self._until = find_until(until, data, folder)
            end = unit_of(data, self.last) if self.last else None
            self._is_reached = end is not None and self._until.has_come(end)
        if present is not None:
            self.begin(present)
        elif self._until is not None:
            check_not_before(self._until, data, self.last, self.trained)

    def next_pass(self, number: int) -> StreamPass | None:
        """Choose the next pass. Its files count as trained from now on.

        A pass has the next files in natural order, `stream.files` or those of a folder, and
        further ones until it fills a batch. With `late: train`, late files that fill a batch
        are the next pass.

        Args:
            number: the number of the pass, from 1.

        Returns:
            The pass; None if its files do not exist yet, or no pass can follow.

        Raises:
            DataError: if a file of the pass cannot be read, or differs from earlier files.
        """
        chosen = None if self.has_ended else self._choose(number)
        if chosen is not None:
            self.take(chosen)
        return chosen

    def take(self, stream_pass: StreamPass) -> None:
        """Count the files of a pass as trained, such as one that was announced before."""
        self.begin(stream_pass)
        for file in stream_pass.files:
            self.trained[file.path] = file.size
            self._to_compare.append(file.path)
            self._facts.pop(file.path, None)
            self._keys.pop(file.path, None)
        self._earlier = self._earlier or stream_pass.files[0]
        self.passes_left -= 1
        if not stream_pass.is_late:
            self.last = stream_pass.files[-1].path

    def begin(self, stream_pass: StreamPass) -> None:
        """Note that a pass is the present or a later one. The sizes of its files are not
        compared until it ends: its readers do."""
        self._under_way.update(file.path for file in stream_pass.files)
        if self._until is not None and not stream_pass.is_late:
            units = (unit_of(self._data, file.path) for file in stream_pass.files)
            self._is_reached = any(map(self._until.is_reached, units))

    def end(self, stream_pass: StreamPass) -> None:
        """Note that all steps of a chosen pass are done."""
        self._under_way.difference_update(file.path for file in stream_pass.files)

    def is_last(self) -> bool:
        """Return whether no pass of this command can follow the chosen ones."""
        if self.has_ended:
            return True
        if self._at_start is None:
            return False
        try:
            return self._choose() is None
        except DataError:
            return False  # `next_pass` raises it, after the pass before

    def why_no_pass(self) -> tuple[str, bool]:
        """Return why no pass follows the chosen ones now, and whether this is normal. A glob that
        matches no file may be wrong."""
        _, units = self._look()
        found = list_stream(self._data, self._folder)
        text, marker = self._data.source, self._stream.folder
        if units and not self.has_ended:
            count = sum(map(len, units))
            rest = f"the {count:,} files after '{self.last}' are"
            if not self.last:
                rest = f"the files of {text} are"
            elif count == 1:
                rest = f"the file after '{self.last}' is"
            return f"{rest} not a whole pass yet", True
        if found or self.trained:
            return "all files that 'until' (--until) allows are trained", True
        if marker is not None and matching_files(self._data.parsed.path, self._folder):
            missing = f"none of their folders has '{marker}'"
            return f"files match {text}, but {missing}", False
        return f"no file matches {text}", False

    def late(self) -> tuple[str, ...]:
        """Return the files that were found to be late since the last call."""
        found, self._late = tuple(self._late), []
        return found

    def changed(self) -> tuple[str, ...]:
        """Return the files of ended passes that were found to have another size since the last
        call."""
        found, self._changed = tuple(self._changed), []
        return found

    @property
    def _stream(self) -> Stream:
        assert self._data.stream is not None
        return self._data.stream

    @property
    def has_ended(self) -> bool:
        """Whether a name or a number of passes has ended the command."""
        return self._is_reached or self.passes_left <= 0

    def _choose(self, number: int = 1) -> StreamPass | None:
        """Return the next pass, or None if its files do not exist yet."""
        for _ in range(_TRIES):
            late, units = self._look()
            try:
                return self._fill(number, late, units)
            except _VanishedError as vanished:
                error = vanished.error
        raise error

    def _look(self) -> tuple[list[str], list[list[str]]]:
        """List the files, and return those to train: late files, and units in turn."""
        start = perf_counter()
        names = list_stream(self._data, self._folder)
        if self._at_start is not None:
            names &= self._at_start
        self._compare_sizes(names)
        if self._stream.late == "skip":
            names -= self.warned
        new = sorted(names - self.trained.keys(), key=self._key)
        late: list[str] = []
        if self.last:
            end = self._key(self.last)[0]
            late = [*takewhile(lambda path: self._key(path)[0] <= end, new)]
        fresh = [path for path in late if path not in self.warned]
        self.warned.update(fresh)
        self._late += fresh
        in_turn = groupby(new[len(late) :], lambda path: self._key(path)[0])
        units = [[*paths] for _, paths in in_turn]
        self.listing_seconds = perf_counter() - start
        return late, units

    def _key(self, path: str) -> tuple[_Key, _Key]:
        """Return the key of the natural order of a file: of its unit, then of its path."""
        if path not in self._keys:
            key, unit = natural_key(path), unit_of(self._data, path)
            self._keys[path] = key if unit == path else natural_key(unit), key
        return self._keys[path]

    def _compare_sizes(self, names: Set[str]) -> None:
        """Note which of the next trained files have another size now."""
        for _ in range(min(_SIZES, len(self._to_compare))):
            path = self._to_compare.popleft()
            size = self.trained[path]
            if path in names and path not in self._under_way:
                with suppress(OSError):  # it is gone
                    size = os.stat(self._folder / path).st_size
            if size == self.trained[path]:
                self._to_compare.append(path)
            else:
                self._changed.append(path)
                self.warned.add(path)

    def _fill(
        self, number: int, late: Sequence[str], units: Sequence[Sequence[str]]
    ) -> StreamPass | None:
        """Return the next pass once its files have the rows of a batch."""
        if self._stream.late == "train":
            files = self._read(late, [])
            if sum(file.rows for file in files) >= self._data.batch:
                return StreamPass(number, tuple(files), is_late=True)
        least, rows = self._stream.files or 1, 0
        if len(units) < least:
            return None
        files = []
        for count, unit in enumerate(units, start=1):
            more = self._read(unit, files)
            files += more
            rows += sum(file.rows for file in more)
            if count >= least and rows >= self._data.batch:
                return StreamPass(number, tuple(files))
        return None

    def _read(self, paths: Sequence[str], before: Sequence[PassFile]) -> list[PassFile]:
        """Return the facts of the next files of a pass, after those `before` them."""
        files: list[PassFile] = []
        for path in paths:
            first = self._earlier or next(iter((*before, *files)), None)
            try:
                files.append(self._facts_of(path, is_first=first is None))
            except DataError as error:
                if not os.path.exists(self._folder / path):
                    raise _VanishedError(error) from error
                raise
            if first is not None:
                check_same_columns(self._request.source.kind, files[-1], first)
        return files

    def _facts_of(self, path: str, *, is_first: bool) -> PassFile:
        request = request_file(self._request, path, is_first=is_first)
        with file_errors(request.source.text, COMPLETE, OSError):
            found = os.stat(self._folder / path)
        version = found.st_ino, found.st_size, found.st_mtime_ns
        if path not in self._facts or self._facts[path][0] != version:
            self._facts[path] = version, read_facts(request)
        return self._facts[path][1]


class _VanishedError(Exception):
    """A listed file is gone. `error` is the error of its reader."""

    def __init__(self, error: DataError) -> None:
        super().__init__(str(error))
        self.error = error
