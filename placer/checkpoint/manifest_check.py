"""Checks that the values of a manifest are valid and consistent.

Decoding has already checked the types of fields. Messages name the path of the field, in
the form that msgspec uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final, get_args

from placer.checkpoint.manifest import (
    CHUNK,
    Manifest,
    Progress,
    Statistic,
    Stored,
    StoredData,
    StoredParameter,
    StoredSparse,
    Watched,
)
from placer.errors import PlacerError
from placer.place.types import ITEM_BYTES
from placer.plan.settings.training.metrics import Finalizer

Problems = Iterator[tuple[str, str]]
"""Pairs of a problem and the path of the field, such as `progress.step`."""

_MAX_INT: Final = 2**63 - 1
_MAX_RANK: Final = 32


def check_manifest(manifest: Manifest) -> None:
    """Raise ValueError if a manifest is not valid; the message names the first bad field."""
    for problem, path in _problems(manifest):
        raise ValueError(f"{problem} - at `$.{path}`")


def _problems(manifest: Manifest) -> Problems:
    yield from _in_data(manifest.train, "train")
    if manifest.evaluation is not None:
        yield from _in_data(manifest.evaluation, "evaluation")
    yield from _in_progress(manifest.progress)
    yield from _in_files(manifest.files)
    for name, parameter in manifest.parameters.items():
        yield from _in_parameter(parameter, f"parameters.{name}", manifest.files)
    for name, table in manifest.sparse.items():
        yield from _in_table(table, f"sparse.{name}", manifest.files)


def _in_data(data: StoredData, path: str) -> Problems:
    try:
        _ = data.settings.parsed
    except PlacerError as error:
        yield error.message, f"{path}.settings.source"
    if data.digests is None:
        return
    for name, column in data.digests.columns.items():
        if len(column) != len(data.digests.rows):
            yield (
                f"it has {len(column)} digests for {len(data.digests.rows)} rows",
                f"{path}.digests.columns.{name}",
            )


def _in_progress(progress: Progress) -> Problems:
    yield from _in_statistics(progress.statistics, "progress.statistics")
    for watched, key in ((progress.best, "best"), (progress.stopping, "stopping")):
        if watched is not None:
            yield from _in_watched(watched, progress.step, f"progress.{key}")
    for i, ahead in enumerate(progress.ahead):
        path = f"progress.ahead[{i}].statistics"
        yield from _in_statistics(ahead.statistics, path)


def _in_watched(watched: Watched, last: int, path: str) -> Problems:
    if watched.step > last:
        yield f"the run had only steps 1 to {last}", f"{path}.step"


def _in_statistics(statistics: Mapping[str, Statistic], path: str) -> Problems:
    for name, sums in statistics.items():
        own = f"{path}.{name}"
        if sums.finalizer not in get_args(Finalizer):
            yield f"unknown finalizer '{sums.finalizer}'", f"{own}.finalizer"
        for problem in _in_array(sums.dtype, sums.shape, own):
            yield problem
            return
        nbytes = ITEM_BYTES[sums.dtype] * prod(sums.shape)
        if len(sums.data) != nbytes:
            yield f"it has {len(sums.data)} bytes instead of {nbytes}", f"{own}.data"


def _in_array(dtype: str, shape: tuple[int, ...], path: str) -> Problems:
    if dtype not in ITEM_BYTES or dtype == "key":
        yield f"'{dtype}' is not a dtype of arrays", f"{path}.dtype"
        return
    # numpy rejects larger shapes even for empty arrays.
    nbytes = ITEM_BYTES[dtype] * prod(max(n, 1) for n in shape)
    if len(shape) > _MAX_RANK or nbytes > _MAX_INT:
        yield "it is not a valid shape of an array", f"{path}.shape"


def _in_files(files: Mapping[str, Stored]) -> Problems:
    for name, file in files.items():
        path = f"files.{name}"
        if len(file.checksums) != -(-file.nbytes // CHUNK):
            yield "the number of checksums does not match the size", f"{path}.checksums"
        for i, checksum in enumerate(file.checksums):
            if not 0 <= checksum < 1 << 32:
                yield "it is not a CRC-32", f"{path}.checksums[{i}]"


def _in_parameter(
    parameter: StoredParameter, path: str, files: Mapping[str, Stored]
) -> Problems:
    yield from _in_array(parameter.dtype, parameter.shape, path)
    at, numel = 0, prod(parameter.shape)
    for i, block in enumerate(parameter.blocks):
        if block.start != at or block.stop < at:
            yield "the blocks are not contiguous", f"{path}.blocks[{i}]"
        if block.file not in files:
            yield f"unknown file '{block.file}'", f"{path}.blocks[{i}].file"
        at = block.stop
    if at != numel:
        yield f"they contain {at} of {numel} elements", f"{path}.blocks"
    for name, dtype in parameter.slot_dtypes.items():
        if name not in parameter.slots:
            yield f"unknown slot '{name}'", f"{path}.slot_dtypes"
        yield from _in_array(dtype, parameter.shape, f"{path}.slot_dtypes.{name}")
    for name, leaf in parameter.leaves.items():
        if name in (*parameter.arrays, *parameter.local_arrays):
            yield "a slot has the same name", f"{path}.leaves.{name}"
        yield from _in_array(leaf.dtype, leaf.shape, f"{path}.leaves.{name}")
    if parameter.leaves and not parameter.blocks:
        yield "it has leaves, but no blocks", f"{path}.blocks"
    if parameter.averaged and parameter.local:
        yield "values of workers have no averages", f"{path}.averaged"
    if (parameter.outer is None) != (not parameter.local):
        yield "one of 'outer' and 'local' is missing", path
    for worker, own in parameter.local.items():
        if own.file not in files:
            yield f"unknown file '{own.file}'", f"{path}.local.{worker}.file"


def _in_table(table: StoredSparse, path: str, files: Mapping[str, Stored]) -> Problems:
    yield from _in_array(table.dtype, (table.dim,), path)
    at = 0
    for i, (file, first, stop) in enumerate(table.files):
        if first != at or stop < at:
            yield "the partitions are not contiguous", f"{path}.files[{i}]"
        if file not in files:
            yield f"unknown file '{file}'", f"{path}.files[{i}]"
        at = stop
    if at != table.partitions:
        yield f"they contain {at} of {table.partitions} partitions", f"{path}.files"
