"""Reads ranges of bytes from a checkpoint's files and verifies their checksums.

A range of elements of a parameter is a range of bytes in one or a few files. A node can
therefore read the elements that it stores from a checkpoint of any placement. It reads
little more: only the rest of the first and last chunks, for the checksums.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

from placer.checkpoint.chunked_file import ChunkedFile, Part
from placer.checkpoint.manifest import (
    CHUNK,
    SPARSE_ARRAYS,
    Manifest,
    Stored,
    StoredBlock,
    StoredParameter,
    StoredSparse,
    tensor_of_rows,
)
from placer.checkpoint.manifest_file import read_manifest
from placer.checkpoint.tensor_file import StoredTensor, read_header
from placer.errors import CheckpointError
from placer.place.types import ITEM_BYTES
from placer.plan.settings.sparse.row_bytes import row_length
from placer.plan.settings.training.optimizers import RULES, VALUES
from placer.system.files.regular import open_regular


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `start` to `stop` of a file of a checkpoint."""

    file: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range of bytes to read from a checkpoint, and a buffer of the same length."""

    range: ByteRange
    out: memoryview


class StoredRows(NamedTuple):
    """What a file contains of a sparse table.

    Attributes:
        rows: the number of rows.
        counted: the number of keys that are counted but have no row.
        nbytes: the bytes of all arrays.
    """

    rows: int
    counted: int
    nbytes: int


class Checkpoint:
    """A checkpoint. The constructor reads the manifest and the headers of all files.

    Args:
        folder: the folder of the checkpoint.

    Attributes:
        folder: the folder of the checkpoint.

    Raises:
        CheckpointError: if the checkpoint is not complete, or if its manifest or a header
            is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        self._tensors: dict[str, dict[str, StoredTensor]] = {}
        for name, stored in self.manifest.files.items():
            self._tensors[name] = self._read_header(name, stored)
        for name, parameter in self.manifest.parameters.items():
            for array, block in _all_blocks(parameter):
                tensor = self._tensors[block.file].get(_tensor(block.tensor, array))
                numel = block.stop - block.start
                dtype = parameter.type_of(array).dtype
                expected = dtype, numel * ITEM_BYTES[dtype]
                if tensor is None or (tensor.dtype, tensor.nbytes) != expected:
                    raise self._damaged(
                        block.file, f"it does not contain {array} of {name}"
                    )
        for name, table in self.manifest.sparse.items():
            self._check_rows(name, table)

    def _check_rows(self, name: str, table: StoredSparse) -> None:
        """Raise CheckpointError if a partition lacks keys, or a row of values for a key."""
        columns = _stored_columns(table)
        for partition in range(table.partitions):
            tensors = self.partition(name, partition)
            keys, values = tensors.get("keys"), tensors.get("values")
            if (
                keys is None
                or values is None
                or (keys.dtype, values.dtype) != ("uint64", table.dtype)
                or values.shape != (*keys.shape, columns)
            ):
                raise self._damaged(
                    table.file_of(partition),
                    f"it does not contain the rows of partition {partition} of {name}",
                )

    def wanted(
        self,
        parameter: str,
        array: str,
        start: int,
        out: memoryview,
        worker: str = "",
    ) -> Iterator[Wanted]:
        """Yield the byte ranges of elements of a parameter's array.

        Args:
            array: VALUES, the name of a slot, or another array of the parameter or worker.
                If only workers have the slot, it is read from the first worker.
            start: the first element, in C order; 0 for a leaf.
            out: the buffer for the elements, as bytes. Its size determines their number.
            worker: the worker whose local values to read; empty for the model's values.
        """
        stored = self.manifest.parameters[parameter]
        size = ITEM_BYTES[stored.type_of(array).dtype]
        stop = start + len(out) // size
        for block in _blocks_with(stored, array, worker):
            low, high = max(start, block.start), min(stop, block.stop)
            if low >= high:
                continue
            tensor = self._tensors[block.file][_tensor(block.tensor, array)]
            first = tensor.offset + (low - block.start) * size
            span = ByteRange(block.file, first, first + (high - low) * size)
            yield Wanted(span, out[(low - start) * size : (high - start) * size])

    def partition(self, table: str, partition: int) -> dict[str, StoredTensor]:
        """Return the tensors of a sparse table's partition by array, in file order."""
        tensors = self._tensors[self.manifest.sparse[table].file_of(partition)]
        return {
            array: tensors[name]
            for array in SPARSE_ARRAYS
            if (name := tensor_of_rows(table, partition, array)) in tensors
        }

    def stored_rows(self, table: str) -> dict[str, StoredRows]:
        """Return what each file contains of a sparse table, by the name of the file."""
        return {
            file: self._rows_of(table, range(first, stop))
            for file, first, stop in self.manifest.sparse[table].files
        }

    def _rows_of(self, table: str, partitions: Iterable[int]) -> StoredRows:
        nbytes: Counter[str] = Counter()
        for partition in partitions:
            for array, tensor in self.partition(table, partition).items():
                nbytes[array] += tensor.nbytes
        key = ITEM_BYTES["uint64"]
        return StoredRows(
            nbytes["keys"] // key, nbytes["entry_keys"] // key, nbytes.total()
        )

    def wanted_rows(
        self, table: str, partition: int, out: Mapping[str, memoryview]
    ) -> Iterator[Wanted]:
        """Yield the byte ranges of a partition's arrays; `out` contains their buffers."""
        file = self.manifest.sparse[table].file_of(partition)
        for array, tensor in self.partition(table, partition).items():
            if array in out:
                span = ByteRange(file, tensor.offset, tensor.offset + tensor.nbytes)
                yield Wanted(span, out[array])

    def read_whole(self, parameter: str) -> bytearray:
        """Return the bytes of a parameter's values for evaluations, in C order.

        Raises CheckpointError if a file cannot be read or is damaged.
        """
        stored = self.manifest.parameters[parameter]
        out = bytearray(ITEM_BYTES[stored.dtype] * prod(stored.shape))
        wanted = self.wanted(parameter, stored.evaluation, 0, memoryview(out))
        self.read([*wanted])
        return out

    def read(self, wanted: Sequence[Wanted]) -> None:
        """Read ranges of bytes, and verify the checksums of all chunks that contain them.

        Each chunk is read once.

        Raises CheckpointError if a file cannot be read or is damaged.
        """
        by_file: dict[str, list[Wanted]] = defaultdict(list)
        for each in wanted:
            if each.out:
                by_file[each.range.file].append(each)
        for name, in_file in by_file.items():
            parts = [Part(each.range.start, each.out) for each in in_file]
            try:
                self._chunks(name).read(parts)
            except OSError as error:
                raise CheckpointError(
                    f"'{self.folder / name}' cannot be read: {error.strerror}"
                ) from error

    def verify(self) -> None:
        """Verify all checksums; raise CheckpointError if a file is damaged."""
        for name in self.manifest.files:
            try:
                self._chunks(name).verify()
            except OSError as error:
                raise CheckpointError(
                    f"'{self.folder / name}' cannot be read: {error.strerror}"
                ) from error

    def _read_header(self, name: str, stored: Stored) -> dict[str, StoredTensor]:
        path = self.folder / name
        try:
            size = path.stat().st_size
            if size != stored.nbytes:
                raise self._damaged(
                    name, f"it has {size} bytes, but had {stored.nbytes}"
                )
            tensors = read_header(path).tensors
            self._check_header(name, tensors)
            return tensors
        except FileNotFoundError:
            raise self._damaged(name, "it is missing") from None
        except OSError as error:
            raise CheckpointError(
                f"'{path}' cannot be read: {error.strerror}"
            ) from error
        except ValueError as error:
            raise self._damaged(name, str(error)) from error

    def _check_header(self, name: str, tensors: Mapping[str, StoredTensor]) -> None:
        stored, chunks = self.manifest.files[name], self._chunks(name)
        end = min((each.offset for each in tensors.values()), default=stored.nbytes)
        chunk = memoryview(bytearray(min(CHUNK, stored.nbytes)))
        with open_regular(self.folder / name) as file:
            for index in range(-(-end // CHUNK)):
                chunks.check(index, [chunk[: file.readinto(chunk)]])

    def _chunks(self, name: str) -> ChunkedFile:
        stored, path = self.manifest.files[name], self.folder / name
        damaged = partial(self._damaged, name)
        return ChunkedFile(path, 0, stored.nbytes, stored.checksums, damaged)

    def _damaged(self, name: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint '{self.folder}' is damaged: {name}: {why}",
            hint="name the folder of checkpoints to use the newest intact one",
        )


def _blocks_with(
    stored: StoredParameter, array: str, worker: str
) -> Sequence[StoredBlock]:
    numel = prod(stored.type_of(array).shape)
    if stored.local and (worker or array not in stored.arrays):
        own = stored.local[worker or next(iter(stored.local))]
        return (StoredBlock(own.file, own.tensor, 0, numel),)
    if array in stored.leaves:
        first = stored.blocks[0]
        return (StoredBlock(first.file, first.tensor, 0, numel),)
    return stored.blocks


def _stored_columns(table: StoredSparse) -> int:
    rule = RULES.get(table.rule or "")
    slots = {*table.slots} - ({rule.row_slot} if rule is not None else set())
    return row_length(table.dim * (1 + len(slots)), ITEM_BYTES.get(table.dtype, 1))


def _all_blocks(stored: StoredParameter) -> Iterator[tuple[str, StoredBlock]]:
    leaves = () if stored.local else stored.leaves
    for array in (*stored.arrays, *leaves):
        for block in _blocks_with(stored, array, ""):
            yield array, block
    for worker in stored.local:
        for array in (*stored.local_arrays, *stored.leaves):
            for block in _blocks_with(stored, array, worker):
                yield array, block


def _tensor(block: str, array: str) -> str:
    return block if array == VALUES else f"{block}/{array}"
