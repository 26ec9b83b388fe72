"""Reads the parameters that a run starts from: a safetensors file or a checkpoint.

A node reads only the elements of its own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from placer.channel.interface import Array
from placer.checkpoint.choice import Warn, last_good
from placer.checkpoint.finite import HINT, find_not_finite
from placer.checkpoint.manifest import FILE, StoredParameter
from placer.checkpoint.reading import Checkpoint, Wanted
from placer.checkpoint.tensor_file import StoredTensor
from placer.errors import DataError
from placer.place.types import TensorType
from placer.plan.plan import SparseTable
from placer.plan.settings.training.slicing import Block
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution
from placer.runtime.control.handshake import NOT_GIVEN, fingerprint
from placer.runtime.control.options import Options
from placer.runtime.saving.parameter_files import ParameterFile, check
from placer.runtime.saving.row_files import compare_sparse, holds_rows


@dataclass(frozen=True, slots=True)
class StartParameters:
    """The opened parameters of a file or checkpoint.

    Attributes:
        file: the file that identifies the parameters. For a checkpoint it is the manifest,
            which contains the checksums of all files.
        checkpoint: the checkpoint; None for a file of parameters.
        types: the types of the parameters, by name.
        read: returns the elements of blocks as flat arrays. It raises DataError if they
            cannot be read, do not match their checksums, or are not finite.
    """

    file: Path
    checkpoint: Checkpoint | None
    types: dict[str, TensorType]
    read: Callable[[Sequence[Block]], list[Array]]


def open_start(execution: Execution) -> StartParameters | None:
    """Open the parameters that `--init-params` names, and check that they fit the model.

    Returns:
        The parameters; None without the option and on a node without tables.

    Raises:
        DataError: if the file or checkpoint cannot be read or does not fit the model.
        CheckpointError: if the folder has no checkpoint, or the checkpoint is damaged.
    """
    path, plan, me = execution.options.init_params, execution.plan, execution.me
    if path is None or not (me.tables or holds_rows(plan, me.name)):
        return None
    start = open_parameters(
        path,
        lambda why: execution.report(NodeWarning(f"{me.name}: {why}")),
        finite=plan.settings.train.nan == "stop",
    )
    declared = {p.name: TensorType(p.dtype, p.shape) for p in plan.parameters}
    check_start(start, declared, {each.name: each for each in plan.sparse_tables})
    return start


def start_fingerprint(options: Options, start: StartParameters | None) -> str | None:
    """Return a digest of the start parameters, for a comparison between nodes.

    The result is `NOT_GIVEN` without `--init-params`, and None on a node that has not opened
    the parameters.
    """
    if options.init_params is None:
        return NOT_GIVEN
    return None if start is None else fingerprint(start.file)


def open_parameters(path: Path, warn: Warn, *, finite: bool) -> StartParameters:
    """Open the parameters in a file, a checkpoint or a folder of checkpoints.

    Args:
        path: a safetensors file, a checkpoint, or a folder of checkpoints. In a folder, the
            newest intact checkpoint is used.
        warn: called with the reason why a checkpoint in a folder is skipped.
        finite: whether all values must be finite.

    Raises:
        DataError: if the file does not exist or cannot be read.
        CheckpointError: if the folder has no checkpoint, or the checkpoint is damaged.
    """
    stored: Mapping[str, StoredTensor | StoredParameter]
    read: Callable[[Sequence[Block]], list[Array]]
    checkpoint = None
    if path.is_dir():
        checkpoint = last_good(path, warn)
        file = checkpoint.folder / FILE
        stored = checkpoint.manifest.parameters
        read = partial(_read_checkpoint, checkpoint)
    else:
        file = path
        opened = ParameterFile(file)
        stored, read = opened.tensors, opened.read
    types = {name: TensorType(each.dtype, each.shape) for name, each in stored.items()}
    if finite:
        read = partial(_read_finite, path, read)
    return StartParameters(file, checkpoint, types, read)


def _read_finite(
    path: Path, read: Callable[[Sequence[Block]], list[Array]], blocks: Sequence[Block]
) -> list[Array]:
    arrays = read(blocks)
    for block, array in zip(blocks, arrays, strict=True):
        if problem := find_not_finite({block.parameter: array}):
            raise DataError(f"{path}: {problem}", hint=HINT)
    return arrays


def check_start(
    start: StartParameters,
    declared: Mapping[str, TensorType],
    tables: Mapping[str, SparseTable],
) -> None:
    """Check that start parameters fit a model.

    Args:
        start: the start parameters.
        declared: the types of the model's parameters, by name.
        tables: the model's sparse tables, by name.

    Raises:
        DataError: if a parameter or sparse table is missing or differs.
    """
    check(start.types, declared)
    if not tables:
        return
    if start.checkpoint is None:
        listed = ", ".join(f"'{name}'" for name in tables)
        raise DataError(
            f"{start.file} does not contain the model's sparse tables: {listed}",
            hint="name a checkpoint; only checkpoints contain rows of sparse tables",
        )
    missing, changed, _ = compare_sparse(
        start.checkpoint.manifest, tables.values(), only_values=True
    )
    problems = [f"{name} is not in it" for name in missing] + changed
    if problems:
        raise DataError(
            f"the sparse tables of {start.checkpoint.folder} do not fit the model:"
            f" {'; '.join(problems)}"
        )


def _read_checkpoint(checkpoint: Checkpoint, blocks: Sequence[Block]) -> list[Array]:
    stored = checkpoint.manifest.parameters
    arrays = [np.empty(block.numel, stored[block.parameter].dtype) for block in blocks]
    wanted: list[Wanted] = []
    for block, out in zip(blocks, arrays, strict=True):
        view, array = out.view(np.uint8).data, stored[block.parameter].evaluation
        wanted += checkpoint.wanted(block.parameter, array, block.start, view)
    checkpoint.read(wanted)
    return arrays
