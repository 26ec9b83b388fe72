"""Reads the arrays of an `.npz` file of `numpy.savez`, without object arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import IO

import numpy as np
from numpy.lib.npyio import NpzFile

from placer.errors import DataError
from placer.plan.settings.data.sources import errors_of_input, missing_column_error
from placer.readers.arguments import ReadRequest
from placer.readers.arrays import check_has_rows, check_row_counts, make_rows
from placer.readers.digests import join_digests
from placer.readers.feeds import Feeds
from placer.readers.file_errors import file_errors
from placer.readers.file_sets import SameColumns, files_of
from placer.readers.rows import LoadedRows, make_loaded_rows
from placer.system.ast_lock import AST_LOCK
from placer.system.files.regular import open_regular

_HINT = (
    "an npz file holds plain arrays, written by numpy.savez; convert an array of"
    " objects with array.astype(numpy.float32), or numpy.stack its rows"
)


def read(request: ReadRequest) -> LoadedRows:
    """Read the columns that the inputs need, of all files one after another.

    Raises DataError if a file cannot be read or does not fit the inputs.
    """
    files: list[LoadedRows] = []
    same, options = SameColumns(), request.options
    most, one_row = options.first_rows, replace(options, first_rows=1)
    for one in files_of(request):
        if most is None or sum(each.rows for each in files) < most:
            files.append(_read_file(one, same))
        elif options.all_files:
            _read_file(replace(one, options=one_row), same)
        else:
            break
    if len(files) == 1:
        return files[0]
    columns = {
        name: np.concatenate([each.columns[name] for each in files])
        for name in files[0].columns
    }
    parts = [each.digests().whole for each in files]
    whole = {key: join_digests(part[key] for part in parts) for key in parts[0]}
    return make_loaded_rows(columns, request.options, whole)


def _read_file(request: ReadRequest, same: SameColumns) -> LoadedRows:
    source, feeds = request.source, request.single_feeds
    inputs = {feeds[column.name]: column.name for column in request.columns}
    with open_arrays(request) as file:
        arrays, most = dict.fromkeys(file, np.empty(0)), request.options.first_rows
        rows: dict[str, int] = {}
        for each in sorted(inputs.keys() & arrays.keys()):
            with _errors_of_column(source.text, each, inputs[each]):
                if most is None:
                    arrays[each] = file[each]
                else:
                    arrays[each], rows[each] = _first_rows(file, each, most)
        # Names of members end in `.npy`, but NumPy's own names do not.
        assert file.zip is not None
        members = file.zip.infolist()
        digests = {m.filename.removesuffix(".npy"): m.CRC for m in members}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"'{name}' is not an array")
    check_row_counts(source.text, rows)
    loaded = make_rows(request, arrays, digests)
    own = Feeds({c.name: (feeds[c.name],) for c in request.columns}, {})
    same.check(source.text, own, {name: a.dtype.name for name, a in arrays.items()})
    return loaded


@contextmanager
def open_arrays(request: ReadRequest) -> Iterator[NpzFile]:
    """Open a file in a context, which converts errors of a damaged file to DataErrors."""
    source = request.source
    with (
        # For a damaged archive, zipfile, its decompressors and NumPy's header parser
        # raise many kinds of exceptions, such as LZMAError, TokenError and TypeError.
        file_errors(source.text, _HINT, Exception),
        # Open the file here, because NumPy does not close it if the archive is damaged.
        # The lock is needed because NumPy parses headers with `ast`.
        open_regular(request.folder / source.path) as stream,
        AST_LOCK,
    ):
        if stream.peek(2)[:2] not in (
            b"PK",
            b"\x93N",
        ):  # NumPy's error would be about pickles
            raise DataError(f"{source.text} is not an npz file", hint=_HINT)
        file = np.load(stream, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise DataError(
                f"{source.text} is a single array, not an npz file",
                hint="write it with numpy.savez, one name per column",
            )
        with file:
            yield file


@contextmanager
def _errors_of_column(source: str, column: str, input: str) -> Iterator[None]:
    with (
        errors_of_input(input),
        file_errors(f"{source}: column '{column}'", _HINT, Exception),
    ):
        yield


def read_headers(request: ReadRequest) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return the shape and the dtype of each array that an input reads, without its values.

    Raises DataError if the file cannot be read, or an array is missing or has no rows.
    """
    source, headers = request.source.text, {}
    with open_arrays(request) as file:
        for input, name in request.single_feeds.items():
            with _errors_of_column(source, name, input):
                if name not in file:
                    raise missing_column_error(source, name, input, tuple(sorted(file)))
                headers[name] = _read_header(file, name)
                check_has_rows(request, name, headers[name][0])
    check_row_counts(source, {name: shape[0] for name, (shape, _) in headers.items()})
    return headers


def _read_header(file: NpzFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    assert file.zip is not None
    with file.zip.open(f"{name}.npy") as member:
        header = _header_of(member)
    if header is not None:
        return header[0], header[2]
    array: np.ndarray = file[name]
    return array.shape, array.dtype


def _first_rows(file: NpzFile, name: str, most: int) -> tuple[np.ndarray, int]:
    """Return the first rows of an array without decompressing more, and its row count."""
    assert file.zip is not None
    with file.zip.open(f"{name}.npy") as member:
        header = _header_of(member)
        if header is not None:
            shape, is_fortran, dtype = header
            if shape and not is_fortran and not dtype.hasobject:
                first = min(most, shape[0]), *shape[1:]
                data = member.read(prod(first) * dtype.itemsize)
                return np.frombuffer(data, dtype, prod(first)).reshape(first), shape[0]
    array: np.ndarray = file[name]
    return array, len(array) if array.ndim else 0


def _header_of(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype] | None:
    """Read the header of an array: its shape, whether it is in Fortran order, its dtype.

    Returns None for a version that NumPy has no function for.
    """
    read_header = _READ_HEADER.get(np.lib.format.read_magic(member))
    return None if read_header is None else read_header(member)


_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
