"""Reads a file that another process is still writing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAX_LINE: Final = 64 << 20
"""Bytes of a line at most."""
_CHUNK: Final = 1 << 20
"""Bytes that are read at once."""


@dataclass(slots=True)
class Tail:
    """The lines of a file, as they come.

    The file is opened for each read: that is when a file system of several machines, such
    as NFS, asks for what another machine has written.

    Attributes:
        path: the file, which need not exist yet.
    """

    path: Path
    _read: int = field(default=0, init=False)
    _pending: bytearray = field(default_factory=bytearray, init=False)

    @property
    def is_within_line(self) -> bool:
        """Whether what was read ends within a line."""
        return bool(self._pending)

    def read(self) -> list[bytes]:
        """Return the complete lines that have come, without their ends; none if there is
        no file yet. Raises ValueError for a line of more than `MAX_LINE`."""
        lines: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                while data := file.read(_CHUNK):
                    self._read += len(data)
                    lines += self._split(data)
        except OSError:
            pass  # the rest comes later
        return lines

    def _split(self, data: bytes) -> list[bytes]:
        """Add what was read, and return the lines that are complete now."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._pending) + lines[0]
            self._pending.clear()
        self._pending += rest
        if len(self._pending) > MAX_LINE:
            raise ValueError(
                f"'{self.path}' has a line of more than {MAX_LINE >> 20} MiB"
            )
        return lines
