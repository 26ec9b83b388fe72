"""Reads a file that another process is still writing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


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
    _pending: bytes = field(default=b"", init=False)

    def read(self) -> list[bytes]:
        """Return the complete lines that have come, without their ends; none if there is
        no file yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        self._read += len(data)
        *lines, self._pending = (self._pending + data).split(b"\n")
        return lines
