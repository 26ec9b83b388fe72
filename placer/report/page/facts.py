"""The facts that a report page shows. `placer report --json` prints them.

Sizes are bytes, times are seconds, and FLOPs are declared by the plan.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from placer.report.step.facts import StepTime

Purpose = Literal[
    "store",
    "read",
    "lookup",
    "combine",
    "forward",
    "backward",
    "forward and backward",
    "update",
    "other",
]
"""The kind of work in a box. A page colors boxes by purpose."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of all facts."""


class Line(Facts, frozen=True):
    """A line of text in a box: a layer, a parameter or an input, and its shape or kind."""

    name: str
    note: str = ""


class Box(Facts, frozen=True):
    """A unit of a program, for one node of a column.

    Attributes:
        id: the index in `Placement.boxes`.
        column: the index in `Placement.columns`.
        row: the row, from the top. Boxes of a column have different rows.
        title: the work, such as "forward and backward".
        lines: the first lines of its content.
        more: the number of lines left out.
        ops: the number of ops.
        flops: the FLOPs of a step, on one node. If nodes differ, the mean.
        total_flops: the FLOPs of a step, on all nodes of the column.
        nbytes: the bytes that the nodes of the column send from this box in a step.
        estimated: whether `nbytes` is an upper bound, as for rows of sparse tables.
        stored: the bytes of the parameters that the box stores, on one node. If nodes
            differ, the mean. Without optimizer slots and sparse tables.
        total_stored: the same bytes, on all nodes of the column.
        seconds: the measured time in the median step, the mean over the nodes that ran the
            box; None if it was not measured.
        functions: the functions and methods of the program that run the box.
        why: the reason for its place, as `placer explain` prints it.
    """

    id: int
    column: int
    row: int
    purpose: Purpose
    title: str
    lines: tuple[Line, ...] = ()
    more: int = 0
    ops: int = 0
    flops: int = 0
    total_flops: int = 0
    nbytes: int = 0
    estimated: bool = False
    stored: int = 0
    total_stored: int = 0
    seconds: float | None = None
    functions: tuple[str, ...] = ()
    why: str = ""


class Column(Facts, frozen=True):
    """A device, or several equal devices.

    Attributes:
        group: the index in `Placement.groups`.
        device: the device, such as "cpu" or "gpu:0-3".
        count: the number of equal devices on a node.
        left_out: the number of boxes that are not drawn.
    """

    group: int
    device: str
    count: int = 1
    left_out: int = 0


class Group(Facts, frozen=True):
    """A node, or several equal nodes.

    Attributes:
        nodes: the names of all nodes.
        title: the nodes in short form, such as "worker:0-1".
    """

    nodes: tuple[str, ...]
    title: str


class Arrow(Facts, frozen=True):
    """The messages from one box to another in a training step.

    Attributes:
        source, target: indices in `Placement.boxes`.
        nbytes: the bytes of a step, from all nodes of the source to all of the target.
        edges: the numbers of the edges.
        values: the names of the first values.
        more: the number of values left out.
        estimated: whether the size is an upper bound, as for rows of sparse tables.
        measured: whether a trace measured the size of rows and keys in the median step.
        seconds: the measured time of the slowest message in the median step, from the start
            of sending until it is sent and received; None if it was not measured.
        between_devices: whether the arrow is a copy between devices of a node. Such a copy
            does not count as bytes sent.
    """

    source: int
    target: int
    nbytes: int
    edges: tuple[int, ...] = ()
    values: tuple[str, ...] = ()
    more: int = 0
    estimated: bool = False
    measured: bool = False
    between_devices: bool = False
    seconds: float | None = None


class Placement(Facts, frozen=True):
    """The placed graph of a training step, or of a prediction.

    Attributes:
        phase: "a training step" or "a prediction batch".
        left_out: devices that share a column, and boxes that are not drawn, as text.
        mode: how workers wait for each other, as sentences; empty if they are synchronous.
    """

    phase: str
    groups: tuple[Group, ...]
    columns: tuple[Column, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    left_out: str = ""
    mode: str = ""


class LayerFacts(Facts, frozen=True):
    """The part of a layer in one box.

    Attributes:
        line: the position in the spec, such as "digits.yaml:28"; empty if unknown.
        ops: the range of its ops in `Details.ops`; ops of a layer are consecutive.
    """

    name: str
    kind: str
    output: str
    flops: int
    line: str
    ops: tuple[int, int]


class Details(Facts, frozen=True):
    """The content of all boxes, which a page loads at the first click or search.

    Attributes:
        ops: the text of each op, as in graph.txt, box by box.
        boxes: the layers of each box, in the order of `Placement.boxes`.
        parameters: the boxes that hold each parameter or block, by its name.
    """

    ops: tuple[str, ...]
    boxes: tuple[tuple[LayerFacts, ...], ...]
    parameters: dict[str, tuple[int, ...]]


class MemoryRow(Facts, frozen=True):
    """The memory of a process, or of each of several equal processes.

    Attributes:
        slots: the state of optimizers, copies and sums of gradients.
        limit: the host memory that the spec grants, or 0.
        devices: the peak of each device and its limit (0 if unknown).
    """

    processes: str
    parameters: int
    slots: int
    activations: int
    flops: int
    limit: int = 0
    devices: dict[str, tuple[int, int]] = {}


class TableRow(Facts, frozen=True):
    """The blocks that a server stores.

    Attributes:
        share: its bytes relative to the mean of all servers; 1 is balanced.
    """

    node: str
    parameters: tuple[str, ...]
    nbytes: int
    share: float


class SparseTableRow(Facts, frozen=True):
    """A sparse table.

    Attributes:
        nodes: the nodes that store it.
        rows, nbytes: its size on all nodes at the end of the run; None without a run.
        bytes_on: its memory on each node at the end of the run.
    """

    name: str
    nodes: str
    rows: int | None = None
    nbytes: int | None = None
    bytes_on: dict[str, int] = {}


class TaskFacts(Facts, frozen=True):
    """A task of a pipeline for one microbatch; `start` and `end` are fractions of a step."""

    name: str
    microbatch: int | None
    start: float
    end: float


class PipelineRow(Facts, frozen=True):
    """The tasks of one node or device; `busy` is the fraction of a step."""

    label: str
    busy: float
    tasks: tuple[TaskFacts, ...]


class Curve(Facts, frozen=True):
    """A metric of one run: `points` are (step, value), decimated to at most 2,000.

    Attributes:
        seconds: the time of each point since the start of the first step.
    """

    run: str
    metric: str
    is_evaluation: bool
    points: tuple[tuple[int, float], ...]
    seconds: tuple[float, ...] = ()


class RunFacts(Facts, frozen=True):
    """A run.

    Attributes:
        ended: "finished", "failed", "interrupted", "running" or "killed".
        metrics: the metrics of the last epoch of training.
        best: the metrics of the best evaluation, or of the last one with `is_last`.
        best_step: the step of this evaluation.
        settings: the settings in which the runs differ.
        is_best: whether the run is the best of all runs.
        is_last: whether `best` is the last evaluation, because the run does not compare
            its evaluations.
        compared: the metric that decides which evaluation is the best; empty if the run
            does not compare its evaluations.
        about: the command, the settings, the start and the machine of the run, by label.
        notes: the warnings, failures and resumptions.
        load: a sentence about other programs that slowed down the run.
        waits: the share of its time in which each node waited for other nodes.
        staleness: the staleness in asynchronous training, as sentences.
        step_seconds: the time of the median step, from the trace of the run.
        chain: the longest chain of the median step, as a sentence.
    """

    name: str
    folder: str
    ended: str
    steps: int
    seconds: float
    samples_per_second: float | None
    metrics: dict[str, float]
    best: dict[str, float]
    best_step: int | None
    settings: dict[str, str]
    error: str = ""
    is_best: bool = False
    is_last: bool = False
    compared: str = ""
    about: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    load: str = ""
    waits: dict[str, float] = {}
    staleness: str = ""
    step_seconds: float | None = None
    chain: str = ""


class LayerRow(Facts, frozen=True):
    """A layer of the model as written: its output, its new parameters and its place."""

    name: str
    kind: str
    output: str
    parameters: int
    place: str


class Total(Facts, frozen=True):
    """A figure in the head of a page, such as "311.9 MFLOPs" and "FLOPs of a step"."""

    value: str
    label: str


class Page(Facts, frozen=True):
    """All facts of a page. Parts without facts are empty or None.

    Attributes:
        command: the `placer report` command.
        source: a sentence that names the drawn build, if the runs have different builds.
        untimed: the reason why no step time is shown, and the command that measures it.
        balance: why servers store different amounts; empty if balanced.
        best: which run was best and how it differs, as a sentence.
    """

    title: str
    command: str
    totals: tuple[Total, ...] = ()
    source: str = ""
    placement: Placement | None = None
    details: Details | None = None
    untimed: str = ""
    step_time: StepTime | None = None
    memory: tuple[MemoryRow, ...] = ()
    tables: tuple[TableRow, ...] = ()
    balance: str = ""
    sparse: tuple[SparseTableRow, ...] = ()
    schedule: tuple[PipelineRow, ...] = ()
    measured_schedule: tuple[PipelineRow, ...] = ()
    curves: tuple[Curve, ...] = ()
    runs: tuple[RunFacts, ...] = ()
    best: str = ""
    layers: tuple[LayerRow, ...] = ()
