"""Defines the manifest of a checkpoint, which contains everything except tensor data.

A checkpoint is a folder with a safetensors file for each node that stores parameters, and
`manifest.json`. The manifest is written last: a folder without it is not a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from placer.plan.settings.data.digests import Digests
from placer.plan.settings.data.lanes import LanePosition
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.stream_pass import StreamPass
from placer.plan.settings.fields import Count, Seed, Size
from placer.plan.settings.training.optimizers import VALUES

VERSION: Final = 5
"""The newest version of the format. Manifests of version 1 have no digest. Those from version 3
on can have optimizer state with types of its own, or values for evaluation; from version 4 on
passes over other rows before; from version 5 on the position in a stream."""
FILE: Final = "manifest.json"
CHUNK: Final = 4 << 20
"""The number of bytes that one checksum covers. The last chunk of a file may be shorter."""
_NODE: Final = r"[a-z][a-z0-9_]*{}[0-9]{{1,9}}(\.[0-9]{{1,9}})?"
NodeName = Annotated[str, Meta(pattern=f"^{_NODE.format(':')}(?!\\n)$")]
"""The name of a node, such as `worker:0`."""
FileName = Annotated[
    str, Meta(pattern=rf"^{_NODE.format('-')}(\.rows)?\.safetensors(?!\n)$")
]
"""The name of a node's file, such as `ps-0.safetensors`."""
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
"""A duration or a time since 1970 in seconds. The maximum is the year 5138."""
OLD: Final = "old"
"""The name of the array with a worker's local values as the servers know them."""
AVERAGED: Final = "averaged"
"""The name of the array with the values for evaluations and exports."""
OUTER: Final = "outer."
"""The prefix of array names for slots of an outer optimizer."""


SPARSE_ARRAYS: Final = (
    *("keys", "values", "seen", "count", "scalars", "updates", "times", "scores"),
    *("entry_keys", "entry_words", "filter", "latest"),
)
"""All possible arrays of a partition of a sparse table. A table has some of them."""


def tensor_of_rows(table: str, partition: int, array: str) -> str:
    """Return the tensor name of an array of a sparse table's partition."""
    return f"{table}/{partition}/{array}"


Number = float | Literal["nan", "inf", "-inf"]
"""A number in JSON. Values that are not finite are strings, because JSON lacks them."""


class Stored(Struct, frozen=True):
    """A file of a checkpoint: its size, and the CRC-32 of each chunk of `CHUNK` bytes."""

    nbytes: Size
    checksums: tuple[int, ...]


class StoredBlock(Struct, frozen=True):
    """A block of a parameter: elements `start` to `stop`, flattened in C order.

    Attributes:
        tensor: the name of the tensor with the values. Slot `s` is in `tensor/s`.
        start: the first element.
        stop: the position after the last element.
    """

    file: str
    tensor: str
    start: Size
    stop: Size


class StoredLocal(Struct, frozen=True):
    """A worker's local values of a parameter.

    Attributes:
        tensor: the name of the tensor with the values. The values that the servers know are
            in `tensor/old`. Slot `s` of the worker's optimizer is in `tensor/s`.
        updates: the number of updates.
    """

    file: str
    tensor: str
    updates: Size


class StoredOuter(Struct, frozen=True):
    """The outer optimizer of a parameter that workers train with their own optimizers.

    Slot `s` of a block is in the tensor `tensor/outer.s`.
    """

    rule: str
    slots: tuple[str, ...]
    updates: Size


class StoredLeaf(Struct, frozen=True):
    """The type of an array of an optimizer's state that blocks do not divide."""

    dtype: str
    shape: tuple[Size, ...]


class StoredParameter(Struct, frozen=True):
    """A parameter and the state of its optimizer.

    The arrays of `leaves` are stored once, with the first block, and for each worker with
    local values.

    Attributes:
        dtype: the dtype of the parameter.
        shape: the shape of the whole parameter.
        rule: the update rule; None for a parameter that is not trained.
        slots: the names of the slots of the rule.
        updates: the number of updates. With `local`, it refers to the first worker.
        blocks: the blocks, in the order of their elements.
        local: the local values of each worker, if workers run their own optimizers. The
            slots of the rule then belong to these values.
        outer: the optimizer of the servers; set if and only if `local` is not empty.
        slot_dtypes: the dtypes of slots that differ from the dtype of the parameter.
        leaves: the arrays of the state that belong to the whole parameter, by name.
        averaged: whether each block also has the values for evaluations and exports, in
            the array `AVERAGED`.
        fn: the function of an optax optimizer, as `MODULE:NAME`.
    """

    dtype: str
    shape: tuple[Size, ...]
    rule: str | None
    slots: tuple[str, ...]
    updates: Size
    blocks: tuple[StoredBlock, ...]
    local: dict[NodeName, StoredLocal] = {}
    outer: StoredOuter | None = None
    slot_dtypes: dict[str, str] = {}
    leaves: dict[str, StoredLeaf] = {}
    averaged: bool = False
    fn: str = ""

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arrays of each block."""
        if self.outer is None:
            averaged = (AVERAGED,) if self.averaged else ()
            return VALUES, *averaged, *self.slots
        return VALUES, *(f"{OUTER}{slot}" for slot in self.outer.slots)

    @property
    def local_arrays(self) -> tuple[str, ...]:
        """The names of the arrays of a worker's local values, without leaves."""
        return VALUES, OLD, *self.slots

    @property
    def evaluation(self) -> str:
        """The name of the array with the values for evaluations and exports."""
        return AVERAGED if self.averaged else VALUES

    def type_of(self, array: str) -> StoredLeaf:
        """Return the type of an array of the whole parameter."""
        if array in self.leaves:
            return self.leaves[array]
        return StoredLeaf(self.slot_dtypes.get(array, self.dtype), self.shape)


def version_of(
    parameters: Mapping[str, StoredParameter], progress: Progress | None
) -> int:
    """Return the oldest version of the format that can describe a checkpoint."""
    if progress is not None and progress.stream is not None:
        return VERSION
    if progress is not None and progress.before != (0, 0):
        return 4
    is_new = any(
        each.slot_dtypes or each.leaves or each.averaged for each in parameters.values()
    )
    return 3 if is_new else 2


class StoredSparse(Struct, frozen=True):
    """A sparse table and the state of its optimizer.

    Attributes:
        dtype: the dtype of the rows.
        dim: the number of values of a row.
        rule: the update rule; None for a table that is not trained.
        slots: the names of the slots of the rule; empty for a table that is not trained.
        partitions: the number of partitions.
        files: the files, in the order of their partitions: the name, the first partition,
            and the partition after the last. An array of a partition is in the tensor
            `table/partition/array`.
        entries: the meaning of the numbers for keys without a row (`entry_form`).
    """

    dtype: str
    dim: Count
    rule: str | None
    slots: tuple[str, ...]
    partitions: Count
    files: tuple[tuple[str, Size, Size], ...]
    entries: str = ""

    def file_of(self, partition: int) -> str:
        """Return the name of the file that contains a partition."""
        return next(
            file for file, first, stop in self.files if first <= partition < stop
        )


class Statistic(Struct, frozen=True):
    """The exact sums of a metric as bytes. The `finalizer` computes the metric from them."""

    finalizer: str
    dtype: str
    shape: tuple[Size, ...]
    data: bytes


class Watched(Struct, frozen=True):
    """The best evaluation so far by one metric.

    Attributes:
        mode: whether the smallest (`min`) or the largest (`max`) value is the best.
        value: the best value.
        step: the step of the best evaluation.
        since: the number of evaluations after the best one.
    """

    metric: str
    mode: Literal["min", "max"]
    value: float
    step: Count
    since: Size = 0


class StepStatistics(Struct, frozen=True):
    """The statistics of one node in a step that some workers have not finished."""

    node: NodeName
    step: Count
    statistics: dict[str, Statistic]


class StreamPosition(Struct, frozen=True):
    """The position of a run in a stream.

    Attributes:
        current: the last pass that has begun.
        first_step: its first step.
        trained: the size in bytes of each file of this pass and the earlier ones, by path.
        last: the last name that was trained in its turn, in natural order; late files are not
            in turn.
        rows: the number of rows of all passes so far.
        left_out: the number of these rows that fill no batch.
        warned: the late and the changed files that the run has warned of.
        lanes: the position in each lane of a Python function after the step.
    """

    current: StreamPass
    first_step: Count
    trained: dict[str, Size]
    last: str
    rows: Size
    left_out: Size
    warned: tuple[str, ...] = ()
    lanes: tuple[LanePosition, ...] = ()


class Progress(Struct, frozen=True):
    """The position of a run after a step.

    Attributes:
        step: the last step that all workers have finished, from 1. Learning-rate schedules
            depend only on the step.
        epoch: the epoch of the step, from 1.
        batches: the number of batches of this epoch so far.
        rows: the number of rows of this epoch so far.
        untrained_rows: the number of rows so far whose worker was a straggler (backup
            workers).
        seconds: the duration of all steps so far, including earlier runs.
        statistics: the statistics of this epoch so far, by metric.
        eval: the metrics of the last evaluation; nan and inf are strings.
        best: the best evaluation, whose checkpoint is kept (`best_evaluation`).
        stopping: the best evaluation for `train.early_stopping`.
        workers: the last step of each worker, for asynchronous training.
        ahead: the statistics of later steps, which some workers have not finished.
        is_end: whether the step was the last step of its run.
        before: the last step before the passes over the present rows, and its epoch; 0 unless
            the run has trained other rows before.
        stream: the position in the stream of training rows, if the source is one.
        published: the id of the publication of the step; empty if the step was not published.
    """

    step: Count
    epoch: Count
    batches: Count
    rows: Size
    seconds: Seconds = 0.0
    statistics: dict[str, Statistic] = {}
    eval: dict[str, Number] = {}
    best: Watched | None = None
    stopping: Watched | None = None
    workers: dict[NodeName, Count] = {}
    ahead: tuple[StepStatistics, ...] = ()
    is_end: bool = False
    untrained_rows: Size = 0
    before: tuple[Size, Size] = (0, 0)
    stream: StreamPosition | None = None
    published: str = ""


class StoredData(Struct, frozen=True):
    """A source of rows: its settings, the number of rows, and the digests of the rows."""

    settings: Data
    rows: Size
    digests: Digests | None


class Machine(Struct, frozen=True):
    """Facts about a node's machine that affect the bits of results.

    Attributes:
        versions: the versions of placer and of numerical packages.
        processor: a digest of the processor's model and features.
        xla_threads: the number of XLA's threads on the CPU.
        devices: the kind of each device that computes, such as `cpu`.
    """

    versions: dict[str, str]
    processor: str
    xla_threads: Count = msgspec.field(name="threads")
    devices: dict[str, str]


class Manifest(Struct, frozen=True):
    """The content of manifest.json.

    Attributes:
        version: the version of the format.
        placer: the version of placer.
        sequence: the number of the checkpoint in its folder. The newest checkpoint has the
            largest number.
        build: the digest of the plan.
        placement: a digest of the facts that determine the order of all sums.
        computation: a digest of the programs and the spec's modules. Only
            digests that begin with `trees-2:` can be compared.
        train: the source of training rows.
        evaluation: the source of evaluation rows, if any.
        progress: the position of the run.
        machines: the facts about each node's machine.
        written: the time of writing, in seconds since 1970.
        parts: the number of parts of a batch that each traced function computes, as in the
            plan.
        settings: the settings of the plan, with the dotted keys of a spec.
        digest: the SHA-256 of all other fields; empty in version 1.
    """

    version: Count
    placer: str
    name: str
    sequence: Size
    build: str
    placement: str
    computation: str
    seed: Seed
    train: StoredData
    evaluation: StoredData | None
    progress: Progress
    parameters: dict[str, StoredParameter]
    files: dict[FileName, Stored]
    machines: dict[NodeName, Machine]
    sparse: dict[str, StoredSparse] = {}
    written: Seconds = 0.0
    parts: dict[str, Count] = {}
    settings: dict[str, Any] = {}
    digest: str = ""
