"""Arrays of one `.npz` file, as `numpy.savez` writes it; objects are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from placer.ast_lock import AST_LOCK
from placer.config.sources import Source
from placer.errors import DataError
from placer.files.regular import open_regular


def read(
    source: Source, folder: Path, wanted: set[str]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The wanted columns of the file, where it has them, and the names of the others;
    and the checksum that the archive has of each.

    Columns that nobody wants are not read: they stand for their names only.
    """
    path = folder / source.path
    try:
        # numpy leaves the file open when the archive turns out to be torn.
        with open_regular(path) as opened, AST_LOCK:
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(
                    f"{source.text} is a single array, not an npz file",
                    hint="write it with numpy.savez, one name per column",
                )
            with file:
                unread = np.empty(0)
                found = {n: file[n] if n in wanted else unread for n in file}
                # numpy leaves the end of the members' names out.
                members = {m.filename: m.CRC for m in file.zip.infolist()}
            for name, array in found.items():
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"'{name}' is no array")
            checksums = {n.removesuffix(".npy"): crc for n, crc in members.items()}
            return found, checksums
    except FileNotFoundError:
        raise DataError(
            f"{source.text}: there is no such file",
            hint="the path is relative to the spec's folder",
        ) from None
    except DataError:
        raise
    # A damaged archive makes zipfile, its decompressors and numpy's parser of headers
    # raise many kinds of exceptions: LZMAError, TokenError, TypeError, MemoryError, …
    except Exception as error:
        raise DataError(
            f"{source.text} cannot be read: {str(error) or type(error).__name__}",
            hint="an npz file holds plain arrays, written by numpy.savez",
        ) from error
