"""Reads a file while another process writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAX_LINE: Final = 64 << 20
"""The largest size of a line in bytes."""
_CHUNK: Final = 1 << 20
"""The number of bytes to read at once."""


@dataclass(slots=True)
class Tail:
    """Reads the new lines of a growing file.

    The file is opened for each read, because network file systems such as NFS check for
    new data only then.

    Attributes:
        path: the file, which may not exist yet.
    """

    path: Path
    _read: int = field(default=0, init=False)
    _pending: bytearray = field(default_factory=bytearray, init=False)

    @property
    def is_within_line(self) -> bool:
        """True if the data read so far ends within a line."""
        return bool(self._pending)

    def read(self) -> list[bytes]:
        """Return the new complete lines, without line ends; no lines if the file does
        not exist. Raises ValueError for a line of more than `MAX_LINE` bytes."""
        lines: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                while data := file.read(_CHUNK):
                    self._read += len(data)
                    lines += self._split(data)
        except OSError:
            pass  # The next call reads the rest.
        return lines

    def _split(self, data: bytes) -> list[bytes]:
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
