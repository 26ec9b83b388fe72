"""Read the arrays of an `.npz` file, as `numpy.savez` writes it, without object
arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from placer.ast_lock import AST_LOCK
from placer.config.sources import Source
from placer.errors import DataError
from placer.files.regular import open_regular
from placer.readers.arguments import ReadRequest
from placer.readers.arrays import make_rows
from placer.readers.rows import LoadedRows


def read(request: ReadRequest) -> LoadedRows:
    """Read the columns that the inputs need.

    Raises DataError if the file cannot be read or does not fit the inputs.
    """
    feeds = request.single_feeds
    wanted = {feeds[column.name] for column in request.columns}
    arrays, digests = _read_arrays(request.source, request.folder, wanted)
    return make_rows(request, arrays, digests)


def _read_arrays(
    source: Source, folder: Path, wanted: set[str]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Read columns of a file.

    Args:
        source: the source, whose path is relative to `folder`.
        folder: the folder of the spec.
        wanted: the names of the columns to read.

    Returns:
        All columns by name, those that are not wanted as empty arrays; and the
        archive's checksum of each column.

    Raises:
        DataError: if the file cannot be read.
    """
    path = folder / source.path
    try:
        # The file is opened here because numpy does not close it if the archive is
        # damaged. The lock is there because numpy parses headers with `ast`.
        with open_regular(path) as stream, AST_LOCK:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(
                    f"{source.text} is a single array, not an npz file",
                    hint="write it with numpy.savez, one name per column",
                )
            with file:
                unread = np.empty(0)
                columns = {n: file[n] if n in wanted else unread for n in file}
                # Names of members end in `.npy`, which numpy's own names leave out.
                members = {m.filename: m.CRC for m in file.zip.infolist()}
            for name, array in columns.items():
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"'{name}' is not an array")
            checksums = {n.removesuffix(".npy"): crc for n, crc in members.items()}
            return columns, checksums
    except FileNotFoundError:
        raise DataError(
            f"{source.text}: there is no such file",
            hint="the path is relative to the spec's folder",
        ) from None
    except DataError:
        raise
    # For a damaged archive, zipfile, its decompressors and numpy's header parser raise
    # many kinds of exceptions: LZMAError, TokenError, TypeError, MemoryError, …
    except Exception as error:
        raise DataError(
            f"{source.text} cannot be read: {str(error) or type(error).__name__}",
            hint="an npz file holds plain arrays, written by numpy.savez",
        ) from error
