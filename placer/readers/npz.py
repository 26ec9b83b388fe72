"""Read the arrays of an `.npz` file, as `numpy.savez` writes it, without object
arrays."""

from __future__ import annotations

import numpy as np

from placer.ast_lock import AST_LOCK
from placer.errors import DataError
from placer.files.regular import open_regular
from placer.readers.arguments import ReadRequest
from placer.readers.arrays import make_rows
from placer.readers.file_errors import file_errors
from placer.readers.rows import LoadedRows


def read(request: ReadRequest) -> LoadedRows:
    """Read the columns that the inputs need.

    Raises DataError if the file cannot be read or does not fit the inputs.
    """
    source, feeds = request.source, request.single_feeds
    wanted = {feeds[column.name] for column in request.columns}
    hint = "an npz file holds plain arrays, written by numpy.savez"
    with (
        # For a damaged archive, zipfile, its decompressors and numpy's header parser
        # raise many kinds of exceptions: LZMAError, TokenError, TypeError, …
        file_errors(source.text, hint, Exception),
        # The file is opened here because numpy does not close it if the archive is
        # damaged. The lock is there because numpy parses headers with `ast`.
        open_regular(request.folder / source.path) as stream,
        AST_LOCK,
    ):
        file = np.load(stream, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise DataError(
                f"{source.text} is a single array, not an npz file",
                hint="write it with numpy.savez, one name per column",
            )
        with file:
            unread = np.empty(0)
            arrays = {n: file[n] if n in wanted else unread for n in file}
            # Names of members end in `.npy`, which numpy's own names leave out.
            members = file.zip.infolist()
            digests = {m.filename.removesuffix(".npy"): m.CRC for m in members}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"'{name}' is not an array")
    return make_rows(request, arrays, digests)
