"""plan.json: all that the runtime needs to know of a build, and all that was chosen.

The one thing that crosses from the compiler to the runtime beside the programs.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from placer.errors import BuildError
from placer.build.folder import added, edited, read_file
from placer.config.csv import Csv
from placer.config.metrics import Final
from placer.layouts import Layout
from placer.layouts.conversions import Share
from placer.files.owners import check_folder
from placer.place import WORKER
from placer.build.plan_check import MEMORY as MEMORY
from placer.build.plan_check import check_plan

VERSION = 1
FILE = "plan.json"
SOURCES = "sources.json"
LARGEST = 1 << 28
"""Bytes that either of them may have."""
BASE_PORT = 27600
"""Node k of a plan listens on this port + k unless it is told otherwise. It is below
the ports that systems give to outgoing connections."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the plan; reading one refuses unknown fields."""


class Moved(Struct, frozen=True):
    """One value of an edge: its name on both sides, its global type, and how it lies.

    `start` and `stop` are a flat range of elements of the operand, when only a block
    of it goes; `whole` is the value that the result is a flat range of on the target,
    from `at` on, so that blocks are received where they belong.
    """

    operand: str
    result: str
    dtype: str
    shape: tuple[int | str, ...]
    layouts: tuple[Layout, Layout]
    start: int | None = None
    stop: int | None = None
    whole: str | None = None
    at: int = 0
    numel: int = 0


class Edge(Struct, frozen=True):
    """A message of every step (or evaluation batch; `once`: of every evaluation).

    `nbytes` is what all its messages of one step carry together.
    """

    id: int
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    values: tuple[Moved, ...]
    nbytes: int
    once: bool = False


class Read(Struct, frozen=True):
    """An input as one node reads it: the parts `own` of `parts` of the global batch."""

    value: str
    input: str
    own: tuple[int, ...] = (0,)
    parts: int = 1

    @property
    def share(self) -> Share:
        """Which rows that are."""
        return Share(self.own, self.parts)


class Metric(Struct, frozen=True):
    """What one node records: its part of a statistic, and what is told of the whole.

    Partial ones (P) are summed over the nodes that record them, in their order, any
    other is taken from the first; `final` is how the number is made (`graph.finals`).
    """

    layout: Layout
    final: Final


class Phase(Struct, frozen=True):
    """What one node does in a training step, or in an evaluation.

    Of a training step `metrics` has the minimized loss, too, which is watched even
    where the spec does not list it.
    """

    reads: tuple[Read, ...] = ()
    metrics: dict[str, Metric] = {}


class TableBlock(Struct, frozen=True):
    """Elements [start, stop) of a parameter, in a table.

    `gradient` is the value that an update takes, None where there is none; `decays`
    says whether the optimizer's weight decay is for it.
    """

    parameter: str
    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    gradient: str | None = None
    decays: bool = True


class Table(Struct, frozen=True):
    """The parameters, or blocks of them, of one optimizer on one node.

    `rule` is None for parameters that are not trained. `in_place` says that an update
    may write over the values while others have views of them: their readers are done.
    That follows from the graph, which only the compiler knows: a node takes the plan's
    word for it, and the digest is what keeps it from being changed by accident.
    """

    name: str
    rule: str | None
    hyper: dict[str, Any]
    learning_rate: Any
    blocks: tuple[TableBlock, ...]
    in_place: bool = False
    devices: str = MEMORY
    """Where it lies: in the node's memory, or on these (`gpu:0-7`)."""


class Node(Struct, frozen=True):
    """One process of the run. `program` is what it runs, which others may too. `turns` is the order in which it runs the blocks of its
    program for the microbatches of a step (`forward.0`). `computes` are the devices that
    work together (`cpu:0`, `gpu:0-7`), none where it computes nothing. FLOPs are
    declared, of one training step; `table_bytes` is what its tables take,
    `activation_bytes` what the values of a step that are alive at once take at most, and
    `device_bytes` what of both each device holds."""

    name: str
    program: str
    devices: dict[str, int]
    step: Phase
    evaluation: Phase | None
    tables: tuple[Table, ...]
    computes: tuple[str, ...]
    turns: tuple[str, ...]
    table_bytes: int
    activation_bytes: int
    device_bytes: dict[str, int]
    flops: int
    replicated_flops: int
    exchange_flops: int


class Parameter(Struct, frozen=True):
    """A whole parameter. `holders` have all its blocks together; replicas are left
    out."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    init: Any
    trainable: bool
    holders: tuple[tuple[str, str, int], ...]
    """(node, table, index of the block in the table), in the order of the blocks."""


class Range(Struct, frozen=True):
    """The least and the greatest value that an input may have, and the op that says so."""

    low: int
    high: int
    op: str
    kind: str


class Data(Struct, frozen=True):
    """Where rows come from; as in the spec.

    `ranges` are those of inputs that number something, such as ids and labels.
    """

    source: str
    batch: int
    split: str | None
    columns: dict[str, str | list[str]] | None
    shuffle: bool
    seed: int
    remainder: Literal["drop", "keep"]
    csv: Csv | None = None
    ranges: dict[str, Range] = {}


class Column(Struct, frozen=True):
    """One input: its dtype and the shape of one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Choice(Struct, frozen=True):
    """Something that placer chose or put in, and why (R3)."""

    what: str
    why: str


class Plan(Struct, frozen=True):
    """Everything of a build but its programs."""

    version: int
    placer: str
    name: str
    precision: Literal["float32", "float64"]
    emulate: bool
    microbatches: int
    schedule: str
    seed: int
    epochs: int
    minimize: str
    nan: Literal["stop", "warn"]
    metrics: tuple[str, ...]
    columns: tuple[Column, ...]
    train: Data
    evaluation: Data | None
    nodes: tuple[Node, ...]
    step_edges: tuple[Edge, ...]
    evaluation_edges: tuple[Edge, ...]
    parameters: tuple[Parameter, ...]
    choices: tuple[Choice, ...]
    modules: tuple[str, ...]
    files: dict[str, str]
    """The sha256 of every other file of the folder but sources.json, by its path."""
    digest: str = ""
    """The sha256 of this plan as JSON with an empty digest."""

    def node(self, name: str) -> Node:
        """The node of that name; BuildError names the valid ones."""
        for node in self.nodes:
            if node.name == name:
                return node
        valid = ", ".join(node.name for node in self.nodes)
        raise BuildError(f"this build has no node '{name}'", hint=f"one of: {valid}")

    @property
    def control(self) -> str:
        """The node that keeps the others in step and sums metrics: the first."""
        return self.nodes[0].name

    @property
    def workers(self) -> int:
        """How many nodes of kind `worker` there are."""
        return sum(node.name.startswith(f"{WORKER}:") for node in self.nodes)


def to_json(plan: Plan) -> str:
    """The plan as it is written: indented, fields in their order, the same every time."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1).decode() + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of plan.json, in the 2020-12 dialect."""
    schema = msgspec.json.schema(Plan)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def sealed(plan: Plan) -> Plan:
    """The plan with its digest."""
    bare = msgspec.structs.replace(plan, digest="")
    return msgspec.structs.replace(plan, digest=sha256(to_json(bare).encode()))


def read_plan(folder: Path) -> Plan:
    """The plan of a build folder, after all of it has been checked: who may change it,
    the hashes of its files, and what the plan says.

    Raises BuildError when the folder is no build, was edited or added to, holds links,
    can be changed by other users, or is of another version of placer.
    """
    file = folder / FILE
    if not os.path.isfile(file):  # False for a name that is too long, too
        raise BuildError(
            f"'{folder}' is not a build folder: it has no {FILE}",
            hint="make one with: placer compile SPEC --out FOLDER",
        )
    check_folder(folder)
    data = read_file(folder, FILE, limit=LARGEST)
    try:
        head = msgspec.json.decode(data)
        version = head.get("version") if isinstance(head, dict) else None
        if version != VERSION:
            raise BuildError(
                f"'{folder}' is of plan version {version}, this placer reads {VERSION}",
                hint="compile the spec again",
            )
        plan = msgspec.convert(head, Plan, strict=True)
        if sealed(plan).digest != plan.digest:
            raise edited(file)
        check_plan(plan, str(file))
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise BuildError(f"'{file}' cannot be read: {error}") from error
    check_files(folder, plan)
    return plan


def check_files(folder: Path, plan: Plan) -> None:
    """Raise BuildError unless every file is as it was compiled (design 8), and there
    are no others.

    A program that Python runs directly is run before this check, and so is what it
    imports from its own folder: `docs/security.md`.
    """
    modules = (f"{module}.py" for module in plan.modules)
    for path in (*(node.program for node in plan.nodes), *modules):
        if path not in plan.files:
            raise BuildError(
                f"'{folder / FILE}' has no hash of '{path}', which is run",
                hint="compile the spec again",
            )
    for path, expected in plan.files.items():
        read_file(folder, path, expected)
    read_sources(folder)
    for path in added(folder, {FILE, SOURCES, *plan.files}):
        raise BuildError(
            f"'{folder / path}' is not of the build",
            hint="take it away: a program could import it",
        )


_Position = Annotated[int, msgspec.Meta(ge=1)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")]


class Sources(Struct, frozen=True):
    """sources.json: the spec, from the build's folder, and the line and column of each
    op in it.

    It is the one file that depends on where the build lies, so the plan has no hash of
    it: whoever moves a build may change `spec`. All that it decides is the folder in
    which data files are looked for, and what messages say.
    """

    spec: Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4096)]
    ops: dict[_Name, tuple[_Position, _Position]]


def read_sources(folder: Path) -> Sources:
    """Where a build was made from; BuildError where that cannot be read."""
    content = read_file(folder, SOURCES, limit=LARGEST)
    return decode_sources(content, folder / SOURCES)


def decode_sources(content: bytes, file: Path) -> Sources:
    """The content of sources.json; `file` names it in the BuildError."""
    try:
        return msgspec.json.decode(content, type=Sources)
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise BuildError(f"'{file}' cannot be read: {error}") from error


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
