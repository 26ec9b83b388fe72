"""The manifest of a checkpoint: all that it has besides the bytes of its tensors.

A checkpoint is a folder with a safetensors file for each node that stores parameters,
and `manifest.json`, which is written last: a folder without it is not a checkpoint.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from placer.plan.settings.data.digests import Digests
from placer.plan.settings.data.source import Data
from placer.plan.settings.fields import Count, Seed, Size
from placer.plan.settings.training.optimizers import VALUES

VERSION: Final = 2
"""The version of the format: manifests of version 1 have no digest."""
FILE: Final = "manifest.json"
CHUNK: Final = 4 << 20
"""The number of bytes of a file that one checksum is for; the last has fewer."""
_NODE: Final = r"[a-z][a-z0-9_]*{}[0-9]{{1,9}}(\.[0-9]{{1,9}})?"
NodeName = Annotated[str, Meta(pattern=f"^{_NODE.format(':')}(?!\\n)$")]
"""The id of a node, such as `worker:0`."""
FileName = Annotated[
    str, Meta(pattern=rf"^{_NODE.format('-')}(\.rows)?\.safetensors(?!\n)$")
]
"""The name of the file of a node, such as `ps-0.safetensors`."""
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
"""A duration, or a time since 1970, up to the year 5138."""
OLD: Final = "old"
"""The array of what servers know of a worker's own values."""
OUTER: Final = "outer."
"""What the names of arrays begin with that are slots of an outer optimizer."""


SPARSE_ARRAYS: Final = (
    *("keys", "values", "seen", "count", "scalars", "updates", "times", "scores"),
    *("entry_keys", "entry_words", "filter", "latest"),
)
"""The arrays of a partition of a sparse table, of which a table has some."""


def tensor_of_rows(table: str, partition: int, array: str) -> str:
    """Return the name of the tensor with an array of a partition of a sparse table."""
    return f"{table}/{partition}/{array}"


Number = float | Literal["nan", "inf", "-inf"]
"""A number in JSON, which has no other spelling for those that are not finite."""


class Stored(Struct, frozen=True):
    """A file of a checkpoint: its size, and the CRC-32 of each `CHUNK` bytes."""

    nbytes: Size
    checksums: tuple[int, ...]


class StoredBlock(Struct, frozen=True):
    """Elements `start` to `stop` of a parameter, flattened in C order.

    `file` has them in the tensor `tensor`, and each slot in the tensor `tensor/slot`.
    """

    file: str
    tensor: str
    start: Size
    stop: Size


class StoredLocal(Struct, frozen=True):
    """A worker's own values of a parameter.

    `file` has them in the tensor `tensor`, what the servers know of them in `tensor/old`,
    and each slot of the worker's optimizer in `tensor/slot`; `updates` is how many updates
    there were.
    """

    file: str
    tensor: str
    updates: Size


class StoredOuter(Struct, frozen=True):
    """The optimizer by which servers update a parameter that workers train by themselves:
    its rule, slots and updates. A slot of a block is in the tensor `tensor/outer.slot`."""

    rule: str
    slots: tuple[str, ...]
    updates: Size


class StoredParameter(Struct, frozen=True):
    """A parameter, with the state of its optimizer.

    Attributes:
        dtype, shape: those of the whole parameter.
        rule: the update rule, None for a parameter that is not trained.
        slots: the names of the slots of the rule.
        updates: how many updates there were.
        blocks: its blocks, in the order of their elements.
        local: by worker, its own values, if workers train by themselves. They have the
            slots of the rule then; `updates` are those of the first worker.
        outer: the optimizer of the servers, if there is `local`.
    """

    dtype: str
    shape: tuple[Size, ...]
    rule: str | None
    slots: tuple[str, ...]
    updates: Size
    blocks: tuple[StoredBlock, ...]
    local: dict[NodeName, StoredLocal] = {}
    outer: StoredOuter | None = None

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that its blocks have."""
        if self.outer is None:
            return VALUES, *self.slots
        return VALUES, *(f"{OUTER}{slot}" for slot in self.outer.slots)

    @property
    def local_arrays(self) -> tuple[str, ...]:
        """The arrays of a worker's own values."""
        return VALUES, OLD, *self.slots


class StoredSparse(Struct, frozen=True):
    """A sparse table, with the state of its optimizer.

    Attributes:
        dtype, dim: those of its rows.
        rule, slots: the update rule and its slots, None and none for a table that is not
            trained.
        partitions: how many partitions it has.
        files: the file that has each range of partitions, in order: its name, the first
            partition and the one behind the last. An array of a partition is the tensor
            `table/partition/array` of its file.
        entries: what is stored of keys without a row (`entry_form`).
    """

    dtype: str
    dim: Count
    rule: str | None
    slots: tuple[str, ...]
    partitions: Count
    files: tuple[tuple[str, Size, Size], ...]
    entries: str = ""

    def file_of(self, partition: int) -> str:
        """Return the file that has a partition."""
        return next(
            file for file, first, stop in self.files if first <= partition < stop
        )


class Statistic(Struct, frozen=True):
    """An array of a metric's sums, of which `finalizer` computes the metric; `data` are
    its bytes, so that it is exact."""

    finalizer: str
    dtype: str
    shape: tuple[Size, ...]
    data: bytes


class Watched(Struct, frozen=True):
    """The best evaluation so far by one metric.

    Attributes:
        metric, mode: the metric, and whether the best value is the `min` or the `max`.
        value: the best value.
        step: the step of this evaluation.
        since: how many evaluations there were after it.
    """

    metric: str
    mode: Literal["min", "max"]
    value: float
    step: Count
    since: Size = 0


class StepStatistics(Struct, frozen=True):
    """The statistics of one node in a step that not all workers have done."""

    node: NodeName
    step: Count
    statistics: dict[str, Statistic]


class Progress(Struct, frozen=True):
    """The position of a run after a step.

    Attributes:
        step: the last step that all workers have done, from 1. Learning-rate schedules
            depend on the step only.
        epoch: the epoch of this step, from 1.
        batches: how many batches of this epoch there were.
        rows: how many rows of this epoch there were.
        seconds: how long all steps took, in all runs.
        statistics: the metrics of this epoch so far.
        eval: the metrics of the last evaluation; nan and inf are strings.
        best: the best evaluation, whose checkpoint is kept (`best_evaluation`).
        stopping: the best evaluation for `train.early_stopping`.
        workers: the last step of each worker, without lockstep.
        ahead: the metrics of later steps, which not all workers have done.
        is_end: whether it was the last step of its run.
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


class StoredData(Struct, frozen=True):
    """A source that the run has read: its settings, rows and digests."""

    settings: Data
    rows: Size
    digests: Digests | None


class Machine(Struct, frozen=True):
    """What the bits of a node's results depend on, besides its program.

    Attributes:
        versions: the versions of placer and of the packages that compute.
        processor: a digest of the processor's model and features.
        xla_threads: the number of threads with which XLA computes on the CPU.
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
        name: the name of the model.
        sequence: how many checkpoints the folder has had up to this one: the checkpoint
            with the largest number is the last.
        build: the digest of the plan.
        placement: the digest of what decides the order of all sums.
        computation: the digest of what the steps compute, with the code of the spec's
            modules. Only digests that begin with `trees-2:` can be compared.
        seed: the seed of the model.
        train, evaluation: the sources.
        progress: the position of the run.
        parameters: the parameters by name.
        sparse: the sparse tables by name.
        files: the files by name.
        machines: what the results of each node depend on.
        written: when it was written, in seconds since 1970.
        digest: the SHA-256 of the rest of the manifest; of version 1 it is empty.
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
    digest: str = ""
