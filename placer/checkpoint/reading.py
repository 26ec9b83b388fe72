"""Reading ranges of bytes of a checkpoint's files, with their checksums.

A range of elements of a parameter is a range of bytes in one file, or in few: so a node
reads what it stores, however the checkpoint was divided, and nothing else but the rest
of the chunks at the ends, which the checksums need.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.checkpoint.manifest import CHUNK, Manifest, Stored, read_manifest
from placer.checkpoint.tensor_file import StoredTensor, read_header
from placer.errors import CheckpointError
from placer.files.regular import open_regular
from placer.tables.protocol import VALUES

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `stop` of a file of a checkpoint."""

    file: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes to read, and where to write them: a view of `stop - start` bytes."""

    range: ByteRange
    out: memoryview


class Checkpoint:
    """A checkpoint whose manifest and headers have been read.

    Args:
        folder: the folder of the checkpoint.

    Attributes:
        manifest: its manifest.

    Raises:
        CheckpointError: if it is not complete, or damaged as far as that shows without
            its tensors.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: Manifest = read_manifest(folder)
        self._tensors: dict[str, dict[str, StoredTensor]] = {}
        for name, stored in self.manifest.files.items():
            self._tensors[name] = self._read_header(name, stored)
        for name, parameter in self.manifest.parameters.items():
            for array in (VALUES, *parameter.slots):
                for block in parameter.blocks:
                    tensor = self._tensors[block.file].get(_tensor(block.tensor, array))
                    numel = block.stop - block.start
                    nbytes = numel * np.dtype(parameter.dtype).itemsize
                    expected = parameter.dtype, nbytes
                    if tensor is None or (tensor.dtype, tensor.nbytes) != expected:
                        raise self._damaged(
                            block.file, f"it does not have {array} of {name}"
                        )

    def ranges(
        self, parameter: str, array: str, start: int, stop: int
    ) -> Iterator[tuple[ByteRange, slice]]:
        """Yield where elements of an array of a parameter are.

        Args:
            parameter: the name of the parameter.
            array: VALUES, or the name of a slot.
            start, stop: the range of elements, flattened in C order.

        Yields:
            The bytes in a file, and which of the wanted elements they are.
        """
        stored = self.manifest.parameters[parameter]
        size = np.dtype(stored.dtype).itemsize
        for block in stored.blocks:
            low, high = max(start, block.start), min(stop, block.stop)
            if low >= high:
                continue
            tensor = self._tensors[block.file][_tensor(block.tensor, array)]
            first = tensor.offset + (low - block.start) * size
            span = ByteRange(block.file, first, first + (high - low) * size)
            yield span, slice(low - start, high - start)

    def wanted(
        self, parameter: str, array: str, start: int, out: Array
    ) -> Iterator[Wanted]:
        """Yield what to read to fill a flat array with the elements from `start`."""
        stop = start + out.size
        for span, part in self.ranges(parameter, array, start, stop):
            yield Wanted(span, out[part].view(np.uint8).data)

    def read(self, wanted: Sequence[Wanted]) -> None:
        """Read ranges of bytes, and check the checksums of all chunks that have them.

        Each chunk is read once. Raises CheckpointError for a file that cannot be read,
        or is damaged.
        """
        by_file: dict[str, list[Wanted]] = defaultdict(list)
        for each in wanted:
            if each.out:
                by_file[each.range.file].append(each)
        for name, in_file in by_file.items():
            in_file.sort(key=lambda each: each.range.start)
            try:
                self._read_file(name, in_file)
            except OSError as error:
                raise CheckpointError(
                    f"'{self.folder / name}' cannot be read: {error.strerror}"
                ) from error

    def verify(self) -> None:
        """Check all checksums; raises CheckpointError if a file is damaged."""
        for name in self.manifest.files:
            chunk = bytearray(CHUNK)
            try:
                with open_regular(self.folder / name) as file:
                    for index, expected in enumerate(self._stored(name).checksums):
                        count = file.readinto(chunk)
                        if zlib.crc32(memoryview(chunk)[:count]) != expected:
                            raise self._damaged(name, f"chunk {index} has changed")
            except OSError as error:
                raise CheckpointError(
                    f"'{self.folder / name}' cannot be read: {error.strerror}"
                ) from error

    def _read_file(self, name: str, wanted: list[Wanted]) -> None:
        """Read ranges of one file, which are sorted. A second thread computes the
        checksums of a chunk while the next one is read."""
        stored = self._stored(name)
        with (
            open_regular(self.folder / name) as file,
            ThreadPoolExecutor(1, "placer checksums") as pool,
        ):
            pending: Future[None] | None = None
            buffers = cycle((bytearray(CHUNK), bytearray(CHUNK)))
            for index, parts in _by_chunk(wanted).items():
                low = index * CHUNK
                view = memoryview(next(buffers))[: stored.nbytes - low]
                if os.preadv(file.fileno(), [view], low) != len(view):
                    raise self._damaged(name, "it is shorter than its manifest says")
                if pending is not None:
                    pending.result()
                pending = pool.submit(self._take, name, index, view, parts)
            if pending is not None:
                pending.result()

    def _take(
        self, name: str, index: int, chunk: memoryview, parts: list[Wanted]
    ) -> None:
        """Check the checksum of a chunk, and copy its bytes to where they are wanted."""
        if zlib.crc32(chunk) != self._stored(name).checksums[index]:
            raise self._damaged(name, f"chunk {index} does not have its checksum")
        start, stop = index * CHUNK, index * CHUNK + len(chunk)
        for each in parts:
            low, high = max(each.range.start, start), min(each.range.stop, stop)
            first = each.range.start
            each.out[low - first : high - first] = chunk[low - start : high - start]

    def _read_header(self, name: str, stored: Stored) -> dict[str, StoredTensor]:
        path = self.folder / name
        try:
            size = path.stat().st_size
            if size != stored.nbytes:
                raise self._damaged(
                    name, f"it has {size} bytes, and had {stored.nbytes}"
                )
            return read_header(path)
        except FileNotFoundError:
            raise self._damaged(name, "it is missing") from None
        except OSError as error:
            raise CheckpointError(
                f"'{path}' cannot be read: {error.strerror}"
            ) from error
        except ValueError as error:
            raise self._damaged(name, str(error)) from error

    def _stored(self, name: str) -> Stored:
        return self.manifest.files[name]

    def _damaged(self, name: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint '{self.folder}' is damaged: {name}: {why}",
            hint="name its folder of checkpoints to take the last good one",
        )


def _tensor(block: str, array: str) -> str:
    """Return the name of the tensor with an array of a block."""
    return block if array == VALUES else f"{block}/{array}"


def _by_chunk(wanted: Sequence[Wanted]) -> dict[int, list[Wanted]]:
    """Return the ranges that each chunk has bytes of, by the number of the chunk."""
    chunks: dict[int, list[Wanted]] = defaultdict(list)
    for each in wanted:
        last = (each.range.stop - 1) // CHUNK
        for index in range(each.range.start // CHUNK, last + 1):
            chunks[index].append(each)
    return dict(sorted(chunks.items()))
