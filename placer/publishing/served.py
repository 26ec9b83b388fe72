"""Reads the publications of a model: parameters, and rows of sparse tables.

    served = load("serving")
    params, tables = served.current()
    served.refresh()  # after that, `current` returns the newest publication

It needs only NumPy and pyarrow, and ml_dtypes for parameters in bfloat16. Any number of threads
may call `current` and look up rows while one thread refreshes.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq

Array = np.ndarray[Any, Any]
_CHUNK = 4 << 20
"""The number of bytes of each checksum."""
_PIECE = 1 << 15
"""The number of rows that are read or moved at a time, so that other threads can run."""
_PAUSE = 1e-5
"""Seconds that a refresh sleeps between pieces."""
_FEW = 3
"""Changes have 8 times as many buckets as rows: most keys are not among them."""
_MERGED = 20
"""Changes are merged into a table if they are more than its rows divided by this number."""
_TRIES = 5
_FORMAT = 1
_MAX_BYTES = 1 << 26
"""The largest size of a manifest or a list of code, in bytes."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_PARAMETERS = "params.safetensors"


class PublicationError(Exception):
    """A publication that cannot be used."""


class Table(NamedTuple):
    """The rows of a table, in the order of the hashes of their keys.

    A bucket has the rows whose hashes have the same first bits. So a row takes 12 to 16 bytes
    besides its numbers: its key, and 4 bytes for each bucket.

    Attributes:
        keys: uint64[n].
        starts: the first row of each bucket, and n: int32, or int64 for large tables.
        shift: the bucket of a hash is `hash >> shift`.
        rows: of shape [n, dim].
        gone: bool[n]: the keys that were removed. Only in `changes`.
        used: bool[buckets]: the buckets that have rows. Only in `changes`.
        changes: rows that replace those of the table.
    """

    keys: Array
    starts: Array
    shift: np.uint64
    rows: Array
    gone: Array | None = None
    used: Array | None = None
    changes: Table | None = None


def hash_keys(keys: Array) -> Array:
    """Return a hash of each key, uint64 (the finalizer of MurmurHash3, by Austin Appleby)."""
    hashed: Array = keys ^ (keys >> np.uint64(33))
    hashed *= np.uint64(0xFF51AFD7ED558CCD)
    hashed ^= hashed >> np.uint64(33)
    hashed *= np.uint64(0xC4CEB9FE1A85EC53)
    hashed ^= hashed >> np.uint64(33)
    return hashed


def pieces(size: int) -> Iterator[slice]:
    """Yield the slices of an array of this size, and let other threads run after each.

    A request would else wait for Python's lock after each of its calls of NumPy.
    """
    for low in range(0, size, _PIECE):
        yield slice(low, min(low + _PIECE, size))
        time.sleep(_PAUSE)


def taken(array: Array, at: Array) -> Array:
    """Return elements, or rows, of an array: `array[at]`."""
    out = np.empty((at.size, *array.shape[1:]), array.dtype)
    for piece in pieces(at.size):
        out[piece] = array[at[piece]]
    return out


def hash_in_pieces(keys: Array) -> Array:
    """Return the hash of each key of a large array."""
    hashed = np.empty(keys.size, np.uint64)
    for piece in pieces(keys.size):
        hashed[piece] = hash_keys(keys[piece])
    return hashed


def make_buckets(hashed: Array, more: int = 0) -> tuple[Array, np.uint64]:
    """Return `starts` and `shift` of a table for sorted hashes.

    The buckets are as many as the rows, up to a factor of 2, times 2 to the power of `more`.
    Raises ValueError if two are equal: a hash belongs to one key.
    """
    bits = max(1, (hashed.size - 1).bit_length()) + more
    shift = np.uint64(64 - bits)
    kind = np.int32 if hashed.size < 1 << 31 else np.int64
    starts = np.zeros((1 << bits) + 1, kind)
    for piece in pieces(hashed.size):
        some = hashed[max(piece.start - 1, 0) : piece.stop]
        if (some[1:] == some[:-1]).any():
            raise ValueError("a key occurs twice")
        buckets = (hashed[piece] >> shift).view(np.int64)
        first, last = int(buckets[0]), int(buckets[-1])
        counts = np.bincount(buckets - first, minlength=last - first + 1)
        part = starts[first + 1 : last + 2]
        np.add(part, counts.astype(kind), out=part)
    np.cumsum(starts, out=starts)
    return starts, shift


def load_table(path: str) -> Table:
    """Return the table in a Parquet file with the columns `key` and `row`."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        kind = file.schema_arrow.field("row").type
        dtype = kind.value_type.to_pandas_dtype()
        return read_table([file], kind.list_size, dtype)


def read_table(files: Sequence[pq.ParquetFile], dim: int, dtype: Any) -> Table:
    """Return the table in open Parquet files with the columns `key` and `row`."""
    count = sum(file.metadata.num_rows for file in files)
    keys = np.empty(count, np.uint64)
    start = 0
    for file in files:
        for batch in file.iter_batches(_PIECE, columns=["key"]):
            stop = start + batch.num_rows
            keys[start:stop] = batch.column(0).to_numpy().view(np.uint64)
            start = stop
    hashed = hash_in_pieces(keys)
    order = np.argsort(hashed)
    starts, shift = make_buckets(taken(hashed, order))
    at = np.empty(count, np.int64)
    for piece in pieces(count):
        at[order[piece]] = np.arange(piece.start, piece.stop)
    rows = np.empty((count, dim), dtype)
    start = 0
    for file in files:
        for batch in file.iter_batches(_PIECE, columns=["row"]):
            stop = start + batch.num_rows
            values = batch.column(0).flatten().to_numpy()
            rows[at[start:stop]] = values.reshape(-1, dim)
            start = stop
            time.sleep(_PAUSE)
    return Table(taken(keys, order), starts, shift, rows)


def find_keys(table: Table, keys: Array, hashed: Array | None = None) -> Array:
    """Return the row of each key, uint64[n], or -1: int64[n].

    `hashed` are the hashes of the keys, if they are known.
    """
    hashed = hash_keys(keys) if hashed is None else hashed
    buckets = (hashed >> table.shift).view(np.int64)
    at = table.starts[buckets].astype(np.int64)
    stops = table.starts[buckets + 1]
    found = np.full(keys.size, -1, np.int64)
    left = np.flatnonzero(at < stops)
    at, stops, wanted = at[left], stops[left], keys[left]
    while left.size:
        equal = table.keys[at] == wanted
        found[left[equal]] = at[equal]
        at += 1
        goes_on = np.flatnonzero(~equal & (at < stops))
        left, at, stops = left[goes_on], at[goes_on], stops[goes_on]
        wanted = wanted[goes_on]
    return found


def look_up_rows(table: Table, keys: Any, absent: Callable[[Array], Any]) -> Array:
    """Return the row of each key.

    Args:
        table: the table.
        keys: integers of any shape.
        absent: returns the rows of keys, uint64[n], that are not in the table.

    Returns:
        An array of the shape of `keys` and one more dimension, the row.
    """
    keys = np.asarray(keys)
    wanted = as_bits(keys).reshape(-1)
    hashed = hash_keys(wanted)
    at = find_keys(table, wanted, hashed)
    out = np.empty((wanted.size, table.rows.shape[1]), table.rows.dtype)
    missing = at < 0
    if table.rows.size:
        np.take(table.rows, at, axis=0, out=out, mode="clip")
    if table.changes is not None:
        new, changed = _find_changed(table.changes, wanted, hashed)
        if new.size:
            assert table.changes.gone is not None
            out[new] = table.changes.rows[changed]
            missing[new] = table.changes.gone[changed]
    if missing.any():
        out[missing] = absent(wanted[missing])
    return out.reshape(*keys.shape, table.rows.shape[1])


def _find_changed(changes: Table, keys: Array, hashed: Array) -> tuple[Array, Array]:
    """Return the positions of the keys that have changed, and their rows in `changes`.

    Most keys have not: their bucket is empty.
    """
    assert changes.used is not None
    buckets = (hashed >> changes.shift).view(np.int64)
    near = np.flatnonzero(changes.used.take(buckets))
    found = find_keys(changes, keys[near], hashed[near])
    is_changed = found >= 0
    return near[is_changed], found[is_changed]


def as_bits(keys: Array) -> Array:
    """Return integers of any dtype as uint64, like the keys of a table."""
    if keys.dtype != np.uint64:
        keys = keys.astype(np.int64)
    return keys.view(np.uint64)


def change_table(table: Table, removed: Array, keys: Array, rows: Array) -> Table:
    """Return a table after changes: keys are removed, then rows are written.

    Args:
        table: the table. It does not change.
        removed: uint64[m].
        keys: distinct keys, uint64[n].
        rows: their rows, of shape [n, dim].
    """
    new = _in_order(keys, rows, np.zeros(keys.size, bool))
    removed = removed[_find_in_pieces(new, removed) < 0]
    none = np.zeros((removed.size, table.rows.shape[1]), table.rows.dtype)
    gone = np.repeat([True, False], [removed.size, keys.size])
    changes = _in_order(
        np.concatenate([removed, keys]), np.concatenate([none, rows]), gone
    )
    before = table.changes
    if before is not None:
        assert before.gone is not None
        assert changes.gone is not None
        stays = np.flatnonzero(_find_in_pieces(changes, before.keys) < 0)
        changes = _in_order(
            np.concatenate([changes.keys, before.keys[stays]]),
            np.concatenate([changes.rows, taken(before.rows, stays)]),
            np.concatenate([changes.gone, before.gone[stays]]),
        )
    if changes.keys.size * _MERGED > table.keys.size:
        return _merged(table, changes)
    return table._replace(changes=changes)


def _in_order(keys: Array, rows: Array, gone: Array) -> Table:
    """Return changes in the order of the hashes of their keys."""
    hashed = hash_in_pieces(keys)
    order = np.argsort(hashed)
    starts, shift = make_buckets(taken(hashed, order), _FEW)
    return Table(
        taken(keys, order),
        starts,
        shift,
        taken(rows, order),
        taken(gone, order),
        starts[:-1] < starts[1:],
    )


def _merged(table: Table, changes: Table) -> Table:
    """Return a table with changes instead of its own, made in pieces."""
    assert changes.gone is not None
    size, new = table.keys.size, np.flatnonzero(~changes.gone)
    hashes = hash_in_pieces(changes.keys)[new]
    at = _find_in_pieces(table, changes.keys)
    replaced = np.sort(at[at >= 0])
    count = size - replaced.size + new.size
    keys = np.empty(count, np.uint64)
    rows = np.empty((count, table.rows.shape[1]), table.rows.dtype)
    hashed = np.empty(count, np.uint64)
    end = first = 0
    for piece in [slice(0, 0)] if not size else pieces(size):
        low, high = piece.start, piece.stop
        old = hash_keys(table.keys[low:high])
        # The new rows whose hashes come before those of the next piece.
        last = new.size
        if high < size:
            last = int(
                np.searchsorted(hashes, hash_keys(table.keys[high : high + 1]))[0]
            )
        stays = np.ones(high - low, bool)
        between = np.searchsorted(replaced, (low, high))
        stays[replaced[between[0] : between[1]] - low] = False
        kept, added = low + np.flatnonzero(stays), new[first:last]
        both = np.concatenate([old[stays], hashes[first:last]])
        order, stop = np.argsort(both), end + both.size
        is_new = order >= kept.size
        from_old, from_new = kept[order[~is_new]], added[order[is_new] - kept.size]
        for out, old_rows, new_rows in (
            (keys[end:stop], table.keys, changes.keys),
            (rows[end:stop], table.rows, changes.rows),
        ):
            out[~is_new], out[is_new] = old_rows[from_old], new_rows[from_new]
            time.sleep(_PAUSE)
        hashed[end:stop] = both[order]
        end, first = stop, last
    starts, shift = make_buckets(hashed)
    return Table(keys, starts, shift, rows)


def _find_in_pieces(table: Table, keys: Array) -> Array:
    found = np.empty(keys.size, np.int64)
    for piece in pieces(keys.size):
        found[piece] = find_keys(table, keys[piece])
    return found


class State(NamedTuple):
    """The publication that a process serves.

    Attributes:
        number: its number.
        step: its training step.
        epoch: its epoch, or pass of a stream.
        newest: the time of the newest event that was trained, in seconds since 1970; None if the
            model has no times.
        written: the time at which it was written.
        is_new: whether this call of `refresh` has loaded it.
        went_back: whether its step is smaller than that of the one before: the run went on from
            an earlier checkpoint.
    """

    number: int
    step: int
    epoch: int
    newest: float | None
    written: float
    is_new: bool
    went_back: bool

    @property
    def age(self) -> float:
        """The seconds since the newest event; without times, since the writing."""
        return time.time() - (self.written if self.newest is None else self.newest)


class Served:
    """The newest publication of a folder, in memory. `load` creates it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._code = _check_code(folder)
        self._manifest: dict[str, Any] | None = None
        self._pair: tuple[dict[str, Array], dict[str, Table]] = {}, {}
        self._went_back = False

    def current(self) -> tuple[dict[str, Array], dict[str, Table]]:
        """Return the parameters and the tables of one publication.

        They do not change, also if `refresh` loads a newer publication meanwhile. `tables` is the
        argument of `look_up` of tables.py.
        """
        return self._pair

    @property
    def state(self) -> State:
        """The publication of `current`."""
        return self._state(is_new=False)

    def refresh(self) -> State:
        """Load the newest publication, unless it is the current one.

        Returns:
            The state of the newest publication.

        Raises:
            PublicationError: if a publication is damaged, missing, or of another model. Then
                `current` still returns the pair from before.
        """
        with self._lock:
            for last in range(_TRIES - 1, -1, -1):
                try:
                    return self._refresh()
                except FileNotFoundError as error:
                    # The run has removed old publications: begin with the newest base.
                    if not last:
                        raise PublicationError(
                            f"'{error.filename}' does not exist"
                        ) from error
                except OSError as error:
                    raise PublicationError(
                        f"'{error.filename}' cannot be read: {error.strerror}"
                    ) from error
            raise AssertionError

    def _refresh(self) -> State:
        found = _list(self._folder)
        newest = max(found, default=0)
        if not newest:
            raise PublicationError(f"'{self._folder}' has no publication")
        manifest = self._read(found, newest)
        now = self._manifest
        if now is not None and now["digest"] == manifest["digest"]:
            return self._state(is_new=False)
        base = manifest["base"]
        first, pair = base, None
        if (
            now is not None
            and now["base"] == base
            and base <= now["number"] < newest
            and now["number"] + 1 in found
        ):
            follows = self._read(found, now["number"] + 1)
            if follows["before_id"] == now["id"]:
                first, pair = now["number"] + 1, self._pair
        if first not in found:
            raise PublicationError(
                f"publication {first} is missing: {found[newest].name} needs it"
            )
        before = None if pair is None else now
        for number in range(first, newest + 1):
            if number not in found:
                raise PublicationError(
                    f"publication {number} is missing: {found[newest].name} needs it"
                )
            read = self._read(found, number)
            if before is not None and read["before_id"] != before["id"]:
                raise PublicationError(
                    f"{found[number].name} does not follow publication {before['number']}"
                )
            pair = self._load(found[number], read, pair)
            before = read
        assert before is not None
        assert pair is not None
        self._went_back = now is not None and before["step"] < now["step"]
        self._manifest, self._pair = before, pair
        return self._state(is_new=True)

    def _state(self, *, is_new: bool) -> State:
        manifest = self._manifest
        assert manifest is not None
        return State(
            manifest["number"],
            manifest["step"],
            manifest["epoch"],
            manifest["newest"],
            manifest["written"],
            is_new,
            is_new and self._went_back,
        )

    def _read(self, found: Mapping[int, Path], number: int) -> dict[str, Any]:
        """Return the manifest of a publication."""
        folder = found[number]
        manifest = _read_manifest(folder)
        kind = "base" if manifest["base"] == number else "delta"
        if folder.name != f"{kind}-{number:06d}" or manifest["number"] != number:
            raise PublicationError(
                f"'{folder}' has the manifest of another publication"
            )
        if manifest["code"] != self._code:
            raise PublicationError(
                f"'{folder}' is of another model than the code in '{self._folder}':"
                " start a new process for it"
            )
        return manifest

    def _load(
        self,
        folder: Path,
        manifest: dict[str, Any],
        pair: tuple[dict[str, Array], dict[str, Table]] | None,
    ) -> tuple[dict[str, Array], dict[str, Table]]:
        """Return the pair after a publication."""
        with ExitStack() as exits:
            files = {
                name: exits.enter_context(_open_checked(folder / name, stored))
                for name, stored in manifest["files"].items()
            }
            try:
                params = _read_parameters(files[_PARAMETERS])
                tables = {}
                for name, table in manifest["tables"].items():
                    before = None if pair is None else pair[1][name]
                    tables[name] = _read_changes(table, files, before)
            except _MALFORMED as error:
                raise PublicationError(f"'{folder}' is damaged: {error!r}") from error
        return params, tables


def load(folder: str | Path = Path(__file__).parent) -> Served:
    """Load the newest publication of a folder.

    Raises:
        PublicationError: if the folder has no publication, or one that cannot be used.

    Example:
        served = load("serving")
        params, tables = served.current()
    """
    served = Served(Path(folder))
    served.refresh()
    return served


def _list(folder: Path) -> dict[int, Path]:
    """Return the folder of each publication, by number."""
    found: dict[int, Path] = {}
    for entry in sorted(folder.iterdir()):
        match = re.fullmatch(r"(?:base|delta)-([0-9]{6,18})", entry.name)
        if match is None or not (entry / "manifest.json").exists():
            continue
        number = int(match[1])
        if number in found:
            raise PublicationError(
                f"'{folder}' has two publications with number {number}"
            )
        found[number] = entry
    return found


_MALFORMED = (
    *(ValueError, KeyError, TypeError, AttributeError),
    *(NotImplementedError, RecursionError),
)
"""What readers raise for contents of another form than that of a run."""


def _open(path: Path) -> BinaryIO:
    """Open a file; never follow a link, or wait for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PublicationError(f"'{path}' is not a regular file")
    return open(descriptor, "rb")


def _read_small(path: Path) -> bytes:
    with _open(path) as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise PublicationError(f"'{path}' is damaged: it is too large")
        return file.read()


_DIGEST = re.compile(rb'"digest": "([0-9a-f]{64})"\n}\n\Z')


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return a manifest whose digest fits."""
    path = folder / "manifest.json"
    content = _read_small(path)
    found = _DIGEST.search(content)
    if found is None:
        raise PublicationError(f"'{path}' is damaged: it has no digest at its end")
    plain = content[: found.start(1)] + content[found.end(1) :]
    if sha256(plain).hexdigest() != found[1].decode():
        raise PublicationError(f"'{path}' is damaged: its digest differs")
    try:
        manifest: dict[str, Any] = json.loads(content)
        if manifest["version"] != _FORMAT:
            raise PublicationError(
                f"'{path}' has version {manifest['version']} of the format, but this"
                f" reader reads version {_FORMAT}"
            )
        problem = _problem_of(manifest)
    except _MALFORMED as error:
        problem = repr(error)
    if problem:
        raise PublicationError(f"'{path}' is damaged: {problem}")
    return manifest


def _problem_of(manifest: Mapping[str, Any]) -> str:
    """Return which field of a manifest has an impossible value, or an empty text."""
    for name, stored in manifest["files"].items():
        if not _NAME.fullmatch(name):
            return f"it names a file outside of its folder: {name}"
        if not _are_sizes(stored["nbytes"], *stored["checksums"]):
            return f"the size of {name} is not valid"
    if _PARAMETERS not in manifest["files"]:
        return "it has no parameters"
    numbers = [manifest[name] for name in ("number", "base", "step", "epoch")]
    if not _are_sizes(*numbers) or not 0 < numbers[1] <= numbers[0]:
        return "its number, base, step or epoch is not valid"
    times = [manifest["written"], manifest["newest"]]
    if not all(isinstance(each, int | float) for each in times if each is not None):
        return "its times are not valid"
    for name, table in manifest["tables"].items():
        if not _are_sizes(*(table[field] for field in ("dim", "rows", "removed"))):
            return f"a size of the table {name} is not valid"
        if table["dtype"] not in _DTYPES.values():
            return f"the dtype of the table {name} is not valid"
        if not {*table["files"], *table["removed_files"]} <= manifest["files"].keys():
            return f"a file of the table {name} is not listed"
    return ""


def _are_sizes(*values: object) -> bool:
    return all(type(each) is int and each >= 0 for each in values)


def _check_code(folder: Path) -> str:
    """Check the code of the model in a folder; return its digest."""
    path = folder / "code.json"
    try:
        content = _read_small(path)
        for name, digest in json.loads(content)["files"].items():
            if not all(map(_NAME.fullmatch, name.split("/"))):
                raise PublicationError(f"'{path}' names a file outside of the folder")
            if sha256((folder / name).read_bytes()).hexdigest() != digest:
                raise PublicationError(f"'{folder / name}' is not the published code")
    except OSError as error:
        raise PublicationError(
            f"'{folder}' has no complete code of a model: {error.strerror}"
        ) from error
    except _MALFORMED as error:
        raise PublicationError(f"'{path}' is damaged: {error!r}") from error
    return sha256(content).hexdigest()


def _open_checked(path: Path, stored: Mapping[str, Any]) -> BinaryIO:
    """Open a file, and compare it with its size and checksums."""
    file = _open(path)
    try:
        size = 0
        for wanted in stored["checksums"]:
            chunk = file.read(_CHUNK)
            size += len(chunk)
            if crc32(chunk) != wanted:
                raise PublicationError(f"'{path}' is damaged: its checksum differs")
        if size != stored["nbytes"] or file.read(1):
            raise PublicationError(f"'{path}' is damaged: its size differs")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _read_changes(
    table: Mapping[str, Any], files: Mapping[str, BinaryIO], before: Table | None
) -> Table:
    """Return a table after a publication; `before` is that before a delta."""
    dim, dtype = table["dim"], np.dtype(table["dtype"])
    opened = [_open_rows(files[name], dim, dtype) for name in table["files"]]
    removed = [_open_rows(files[name], 0, dtype) for name in table["removed_files"]]
    counts = [
        sum(file.metadata.num_rows for file in each) for each in (opened, removed)
    ]
    if counts != [table["rows"], table["removed"]]:
        raise ValueError(f"it has {counts[0]} rows and {counts[1]} removed keys")
    if before is None:
        return read_table(opened, dim, dtype)
    if (before.rows.shape[1], before.rows.dtype) != (dim, dtype):
        raise ValueError("the rows of its base have another type")
    keys, rows = _read_keys(opened), np.empty((counts[0], dim), dtype)
    start = 0
    for file in opened:
        for batch in file.iter_batches(_PIECE, columns=["row"]):
            stop = start + batch.num_rows
            rows[start:stop].reshape(-1)[:] = batch.column(0).flatten().to_numpy()
            start = stop
    return change_table(before, _read_keys(removed), keys, rows)


def _open_rows(file: BinaryIO, dim: int, dtype: np.dtype[Any]) -> pq.ParquetFile:
    """Open a Parquet file of rows, or of keys if `dim` is 0.

    Raises ValueError for other columns, or if the file claims more rows than it has bytes for:
    no memory is taken for them.
    """
    parquet = pq.ParquetFile(file)
    schema, metadata = parquet.schema_arrow, parquet.metadata
    if schema.names != ["key", "row"][: 2 if dim else 1]:
        raise ValueError("a file has other columns")
    if schema.field("key").type.to_pandas_dtype() not in (np.int64, np.uint64):
        raise ValueError("the keys of a file have another type")
    if dim:
        kind = schema.field("row").type
        if (kind.list_size, kind.value_type.to_pandas_dtype()) != (dim, dtype.type):
            raise ValueError("the rows of a file have another type")
    nbytes = os.fstat(file.fileno()).st_size
    if metadata.num_rows * (8 + dim * dtype.itemsize) > nbytes:
        raise ValueError(f"a file has no bytes for {metadata.num_rows} rows")
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    for group in groups:
        for column in range(group.num_columns):
            if group.column(column).compression != "UNCOMPRESSED":
                raise ValueError("a file is compressed")
    return parquet


def _read_keys(files: Sequence[pq.ParquetFile]) -> Array:
    """Return the keys of Parquet files."""
    columns = [file.read(columns=["key"]).column(0) for file in files]
    keys = [column.to_numpy().view(np.uint64) for column in columns]
    return np.concatenate([np.empty(0, np.uint64), *keys])


_DTYPES = {
    **{f"F{8 * n}": f"float{8 * n}" for n in (2, 4, 8)},
    **{f"I{8 * n}": f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{f"U{8 * n}": f"uint{8 * n}" for n in (1, 2, 4, 8)},
    "BOOL": "bool",
}


def _read_parameters(file: BinaryIO) -> dict[str, Array]:
    """Return the arrays of a safetensors file, by name."""
    content = file.read()
    start = 8 + int.from_bytes(content[:8], "little")
    params = {}
    for name, entry in json.loads(content[8:start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] == "BF16":
            import ml_dtypes

            dtype: Any = np.dtype(ml_dtypes.bfloat16)
        else:
            dtype = np.dtype(_DTYPES[entry["dtype"]])
        low, high = entry["data_offsets"]
        if not (
            _are_sizes(low, high, *entry["shape"]) and start + high <= len(content)
        ):
            raise ValueError(f"the position or the shape of {name} is not valid")
        flat = np.frombuffer(content[start + low : start + high], dtype)
        params[name] = flat.reshape(entry["shape"])
    return params
