"""The fixed parts of a spec: keys, types, defaults and meanings.

The loader checks mappings against these structs one by one, `placer schema` prints
them as JSON Schema. What an op takes is declared in `placer.ops`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from placer.config.csv import Csv
from placer.types import LARGEST

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
KIND_PATTERN = r"^[a-z][a-z0-9_]*$"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Shape = list[Annotated[int, Meta(ge=1, le=LARGEST)]]
NodeCount = Annotated[int, Meta(ge=1, le=100_000)]  # what a place can say
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
# Read by a reader of its own, so nothing of it is checked here.
TypeText = Annotated[Any, Meta(extra_json_schema={"type": "string"})]
Positive = Annotated[float, Meta(gt=0)]


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Device(Struct, forbid_unknown_fields=True):
    """The devices of one kind on a node."""

    count: Annotated[NodeCount, _doc("how many of them a node has")] = 1
    memory: Annotated[
        str | None, _doc("memory of each, as 80GiB; checked where it is given")
    ] = None


class Nodes(Struct, forbid_unknown_fields=True):
    """The nodes of one kind."""

    count: Annotated[NodeCount, _doc("how many nodes, numbered from 0")] = 1
    devices: Annotated[
        dict[str, NodeCount | Device], _doc("what each node has; {cpu: 1} unless given")
    ] = {}


class Data(Struct, forbid_unknown_fields=True):
    """Where rows come from, and how they make batches."""

    source: Annotated[
        str, _doc("csv:PATH, npz:PATH, python:MODULE:FUNCTION or sklearn:NAME")
    ]
    batch: Annotated[
        Count | None, _doc("rows of the global batch; eval takes train's unless given")
    ] = None
    split: Annotated[
        Literal["train", "test"] | None,
        _doc("of sklearn: and csv:; the last fifth of a fixed permutation is test"),
    ] = None
    columns: Annotated[
        dict[Name, str | list[str]] | None,
        _doc("the column that each input takes; of a csv: file several, or a glob"),
    ] = None
    shuffle: Annotated[bool, _doc("a new global order every epoch")] = False
    seed: Annotated[Seed, _doc("of the shuffle")] = 0
    remainder: Annotated[
        Literal["drop", "keep"] | None,
        _doc("the short last batch of an epoch: train drops it, eval keeps it"),
    ] = None
    csv: Csv | None = None


class DataSection(Struct, forbid_unknown_fields=True):
    """The rows to train on, and those to evaluate on."""

    train: Data
    eval: Data | None = None


class Block(Struct, forbid_unknown_fields=True):
    """Ops that share a place; blocks nest, and the inner place wins."""

    ops: Annotated[list[Any], _doc("ops and blocks, in program order")]
    place: Annotated[str | None, _doc("as /node:worker/gpu:0-7")] = None
    remat: Annotated[
        bool, _doc("true computes the block again for backward, and keeps less")
    ] = False


class ParameterRule(Struct, forbid_unknown_fields=True):
    """What holds for the parameters that a pattern fits; the first that fits wins."""

    match: Annotated[str, _doc("a glob over names such as h1.w")]
    init: Annotated[Any, _doc("the initialiser, instead of the op's")] = None
    trainable: Annotated[bool, _doc("false keeps the initial values")] = True
    decay: Annotated[
        bool, _doc("false leaves it out of an optimizer's weight_decay")
    ] = True


class Clip(Struct, forbid_unknown_fields=True):
    """A bound on gradients: one of the three."""

    global_norm: Annotated[
        Positive | None, _doc("the longest that all of them together may be")
    ] = None
    norm: Annotated[Positive | None, _doc("the longest that each may be")] = None
    value: Annotated[Positive | None, _doc("the largest that an element may be")] = None


class Slicing(Struct, forbid_unknown_fields=True):
    """How parameters are cut over servers."""

    min_block: Annotated[Count, _doc("no parameter is cut into more blocks of it")] = (
        8192
    )
    rounding: Annotated[
        Literal["ceil", "floor"], _doc("of the number of least blocks")
    ] = "ceil"
    dispatch: Annotated[
        Literal["balanced", "round_robin", "hash", "merged"],
        _doc("which server takes which block"),
    ] = "balanced"


class Eval(Struct, forbid_unknown_fields=True):
    """When to evaluate."""

    every: Annotated[Literal["epoch"], _doc("and after the last step")] = "epoch"


class Optimizer(Struct, forbid_unknown_fields=True):
    """One group of parameters and its update rule; hyperparameters stand beside."""

    op: Annotated[str, _doc("the update rule")]
    learning_rate: Annotated[float | dict[str, Any], _doc("a number or a schedule")]
    place: Annotated[str | None, _doc("where the parameters and their state stand")] = (
        None
    )
    update: Annotated[Literal["sync"], _doc("how gradients meet")] = "sync"
    match: Annotated[
        str | None, _doc("a glob over parameter names; without it, all that are left")
    ] = None
    clip: Annotated[Clip | None, _doc("over this group alone")] = None


class Train(Struct, forbid_unknown_fields=True):
    """What to minimise, and how."""

    minimize: Annotated[str, _doc("the loss: a scalar")]
    optimizer: Annotated[
        Optimizer | list[Optimizer], _doc("one entry, or one for each group")
    ]
    backward: Annotated[
        str | None,
        _doc("place of the gradients of ops that have no place of their own"),
    ] = None
    epochs: Annotated[Count, _doc("passes over the train rows")] = 1
    microbatches: Annotated[
        Count, _doc("parts of a batch that go through one after the other")
    ] = 1
    schedule: Annotated[
        Literal["1f1b", "gpipe"], _doc("in what order they do, where there are several")
    ] = "1f1b"
    nan: Annotated[
        Literal["stop", "warn"], _doc("what happens when the loss is not finite")
    ] = "stop"
    metrics: Annotated[
        list[str] | None, _doc("scalars to record; the loss unless given")
    ] = None
    clip: Annotated[Clip | None, _doc("over all groups")] = None
    slicing: Slicing | None = None
    eval: Eval | None = None


class Spec(Struct, forbid_unknown_fields=True):
    """One model: its nodes, its rows, its graph and how to train it."""

    nodes: Annotated[dict[str, Nodes], _doc("the cluster, by node kind")]
    inputs: Annotated[
        dict[Name, TypeText], _doc("a type as float32[batch, 64] for each")
    ]
    data: DataSection
    graph: Annotated[list[Any], _doc("ops and blocks of ops, in program order")]
    train: Train
    name: Annotated[Name | None, _doc("the file's name unless given")] = None
    parameters: Annotated[
        list[ParameterRule], _doc("exceptions to what ops say of their parameters")
    ] = []
    precision: Annotated[
        Literal["float32", "float64"], _doc("float64 widens every float")
    ] = "float32"
    seed: Annotated[Seed, _doc("of initial values")] = 0
    emulate: Annotated[
        bool, _doc("every device that is no CPU is a CPU device of its own")
    ] = False


class ParameterOp(Struct, forbid_unknown_fields=True):
    """A parameter that no layer makes: an op of kind `parameter`."""

    name: Annotated[Name, _doc("the parameter's")]
    op: Literal["parameter"]
    shape: Annotated[Shape, _doc("ints; [] for a scalar")]
    init: Annotated[Any, _doc("how it begins")]
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32", "float64"], _doc("a float")
    ] = "float32"


class CallParameter(Struct, forbid_unknown_fields=True):
    """A parameter, or a part of the state, of an op of kind `call`."""

    shape: Annotated[Shape, _doc("ints; [] for a scalar")]
    init: Annotated[Any, _doc("how it begins")]
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32", "float64"], _doc("a float")
    ] = "float32"


class CallOp(Struct, forbid_unknown_fields=True):
    """A JAX function beside the spec as an op, of kind `call`:
    `fn(params, state, *inputs, rng, training)` gives its outputs and its new state."""

    name: Annotated[Name, _doc("the op's")]
    op: Literal["call"]
    fn: Annotated[str, _doc("MODULE:FUNCTION, in a file beside the spec")]
    out: Annotated[
        str | list[dict[Name, TypeText]],
        _doc('names and types of the results, as [y: "float32[batch, 64]"]'),
    ]
    in_: Annotated[str | list[str] | None, _doc("the values that it takes")] = (
        msgspec.field(default=None, name="in")
    )
    params: Annotated[
        dict[Name, CallParameter | str] | None, _doc("parameters, or whose are shared")
    ] = None
    state: Annotated[
        dict[Name, CallParameter] | None, _doc("what the function itself changes")
    ] = None
    batch: Annotated[
        Literal["rows", "whole"],
        _doc("rows: row i of every output depends on row i of the inputs only"),
    ] = "whole"
    place: Annotated[str | None, _doc("as /node:worker/gpu:0-7")] = None


class Region(Struct, forbid_unknown_fields=True):
    """A part of a traced function that runs in one place."""

    out: Annotated[
        list[dict[str, TypeText]], _doc("its results and their types, in their order")
    ]
    in_: Annotated[str | list[str] | None, _doc("values and parameters")] = (
        msgspec.field(default=None, name="in")
    )
    place: Annotated[str | None, _doc("as /node:worker/gpu:0-7")] = None


class TraceOp(Struct, forbid_unknown_fields=True):
    """A JAX function beside the spec that is cut into regions, of kind `trace`, as
    `placer.trace` writes it."""

    name: Annotated[Name, _doc("that of its only result; others are name.out0, …")]
    op: Literal["trace"]
    fn: Annotated[str, _doc("MODULE:FUNCTION, in a file beside the spec")]
    args: Annotated[
        list[dict[str, Any]],
        _doc("what it is called with, as [{make: model}, {in: x}]"),
    ]
    regions: Annotated[list[Region], _doc("what guards inside of it cut it into")]
    in_: Annotated[str | list[str] | None, _doc("the values that it takes")] = (
        msgspec.field(default=None, name="in")
    )
    params: Annotated[
        dict[Name, CallParameter] | None,
        _doc("its parameters, by what regions call them"),
    ] = None
    batch: Annotated[
        Literal["rows", "whole"],
        _doc("rows: row i of every result depends on row i of the inputs only"),
    ] = "whole"
    place: Annotated[str | None, _doc("of regions that say none")] = None
