"""The sections of a spec as msgspec structs: keys, types, defaults and descriptions.

`decode` checks the mappings of a spec by these structs. `placer schema` prints them as
JSON Schema. The operands and attributes of ops are declared in `placer.ops`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from placer.place.types import MAX_DIM
from placer.plan.settings.data.source import Data
from placer.plan.settings.evaluation_and_stopping import Publishing
from placer.plan.settings.fields import Count, Name, doc
from placer.plan.settings.run import ModelKeys, TrainKeys
from placer.plan.settings.training.schedules import Rate
from placer.plan.settings.training.update_modes import Async, Geo, Sync

Shape = list[Annotated[int, Meta(ge=1, le=MAX_DIM)]]
# A place string cannot name more nodes.
MAX_NODES = 100_000
NodeCount = Annotated[int, Meta(ge=1, le=MAX_NODES)]
# The reader of types checks the text.
TypeText = Annotated[Any, Meta(extra_json_schema={"type": "string"})]
Positive = Annotated[float, Meta(gt=0)]


PlaceText = Annotated[str | None, doc("such as /node:worker/gpu:0-7")]
Operands = Annotated[str | list[str] | None, doc("the operands")]


class Device(Struct, forbid_unknown_fields=True):
    """The devices of one kind on a node."""

    count: Annotated[NodeCount, doc("number of devices on each node")] = 1
    memory: Annotated[
        str | None,
        doc(
            "memory of each device, such as 80GiB; the compiler checks that the model"
            " fits"
        ),
    ] = None


class Nodes(Struct, forbid_unknown_fields=True):
    """The nodes of one kind."""

    count: Annotated[NodeCount, doc("number of nodes; their ids count from 0")] = 1
    devices: Annotated[
        dict[str, NodeCount | Device], doc("devices of each node; {cpu: 1} by default")
    ] = {}


class DataSection(Struct, forbid_unknown_fields=True):
    """The rows for training and for evaluation."""

    train: Data
    eval: Data | None = None


class Scope(Struct, forbid_unknown_fields=True):
    """Ops that share a place or `remat`. Scopes nest, and the inner place wins."""

    ops: Annotated[list[Any], doc("ops and scopes, in program order")]
    place: PlaceText = None
    remat: Annotated[
        bool, doc("true: recompute the ops in the backward pass, to save memory")
    ] = False


class ParameterRule(Struct, forbid_unknown_fields=True):
    """Settings of the parameters that match a pattern. The first match applies."""

    match: Annotated[str, doc("a glob over parameter names, such as h1.w")]
    init: Annotated[Any, doc("an initializer that replaces the op's initializer")] = (
        None
    )
    trainable: Annotated[bool, doc("false: the parameter keeps its initial values")] = (
        True
    )
    decay: Annotated[
        bool, doc("false: exclude the parameter from the optimizer's weight_decay")
    ] = True


class Clip(Struct, forbid_unknown_fields=True):
    """A bound on gradients. Exactly one of the keys is set."""

    global_norm: Annotated[
        Positive | None, doc("largest norm of all gradients together")
    ] = None
    norm: Annotated[Positive | None, doc("largest norm of each gradient")] = None
    value: Annotated[Positive | None, doc("largest absolute value of an element")] = (
        None
    )


class Slicing(Struct, forbid_unknown_fields=True):
    """How parameters are divided into blocks for servers."""

    min_block: Annotated[Count, doc("smallest number of elements in a block")] = 8192
    rounding: Annotated[
        Literal["ceil", "floor"],
        doc("how the number of blocks, elements / min_block, is rounded"),
    ] = "ceil"
    dispatch: Annotated[
        Literal["balanced", "round_robin", "hash", "merged"],
        doc("how blocks are assigned to servers"),
    ] = "balanced"


class Update(Struct, forbid_unknown_fields=True, rename={"async_": "async"}):
    """An update mode with its settings."""

    sync: Annotated[
        Sync | None, doc("workers train synchronously, optionally with backup workers")
    ] = None
    async_: Annotated[
        Async | None,
        doc(
            "workers train asynchronously; servers apply each gradient when it arrives"
        ),
    ] = None
    geo: Annotated[
        Geo | None,
        doc("workers train local copies and exchange the changes every few steps"),
    ] = None


class Outer(Struct, forbid_unknown_fields=True):
    """The servers' optimizer. Its gradient is the mean of the workers' changes.

    Hyperparameters are further keys.
    """

    op: Annotated[str, doc("the update rule")]
    learning_rate: Annotated[Rate, doc("a number or a schedule")]


class OptimizerKeys(Struct, forbid_unknown_fields=True, kw_only=True):
    """The keys of every optimizer, in addition to its rule."""

    place: Annotated[str | None, doc("place of the parameters and their slots")] = None
    update: Annotated[
        Literal["sync", "async", "half_async"] | Update,
        doc("how the workers agree on updates"),
    ] = "sync"
    match: Annotated[
        str | None,
        doc("a glob over parameter names; by default all remaining parameters"),
    ] = None
    clip: Annotated[
        Clip | None, doc("clips the gradients of this optimizer's parameters")
    ] = None
    shard_state: Annotated[
        bool,
        doc("true: each worker stores and updates only a part of the parameters"),
    ] = False
    all_reduce: Annotated[
        Literal["direct", "ring"], doc("how workers exchange gradients")
    ] = "direct"
    sum: Annotated[
        str | None,
        doc(
            "place of servers that only sum the gradients; each worker applies the sum"
        ),
    ] = None


class Optimizer(OptimizerKeys, kw_only=True):
    """An update rule and its parameters. Hyperparameters are further keys."""

    op: Annotated[str, doc("the update rule")]
    learning_rate: Annotated[Rate, doc("a number or a schedule")]


class OptaxOptimizer(OptimizerKeys, kw_only=True):
    """An optax optimizer: a function in a file next to the spec."""

    op: Literal["optax"]
    fn: Annotated[
        str,
        doc(
            "MODULE:FUNCTION, in a file next to the spec; returns an"
            " optax.GradientTransformation"
        ),
    ]
    with_: Annotated[
        dict[str, Any] | None, doc("plain data: the arguments of fn by name")
    ] = msgspec.field(default=None, name="with")
    learning_rate: Annotated[
        Rate | None,
        doc("a number or a schedule, if the function takes learning_rate"),
    ] = None
    eval_params: Annotated[
        str | None,
        doc(
            "MODULE:FUNCTION; returns the parameters for evaluations and exports, given"
            " the optimizer's state and the parameters"
        ),
    ] = None


class Train(TrainKeys, frozen=True, kw_only=True):
    """The loss, and how to minimize it."""

    optimizer: Annotated[
        Optimizer | list[Optimizer],
        doc("one optimizer, or a list with one for each group of parameters"),
    ]
    backward: Annotated[
        str | None,
        doc("default place of the ops that have gradients"),
    ] = None
    gradient_accumulation: Annotated[
        Count | None, doc("another name for microbatches")
    ] = None
    threads: Annotated[
        Count | None,
        doc(
            "number of training threads in each worker; each trains on a part of the"
            " worker's rows"
        ),
    ] = None
    clip: Annotated[Clip | None, doc("clips all gradients of the model together")] = (
        None
    )
    slicing: Slicing | None = None
    bucket_cap_mb: Annotated[
        Positive | None,
        doc("size of a bucket in MiB; gradients go to the servers in buckets"),
    ] = None
    publish: Annotated[
        Publishing | None,
        doc("publish parameters and changed rows for serving; needs `predict`"),
    ] = None


class Predict(Struct, forbid_unknown_fields=True):
    """The outputs of a prediction."""

    outputs: Annotated[
        Annotated[list[str], Meta(min_length=1)],
        doc("names of values with a batch dimension, such as [probability]"),
    ]


class Spec(ModelKeys, frozen=True, kw_only=True):
    """A model: its nodes, rows, graph and training."""

    nodes: Annotated[dict[str, Nodes], doc("the cluster, by node kind")]
    inputs: Annotated[
        dict[Name, TypeText], doc("the type of each input, such as float32[batch, 64]")
    ]
    data: DataSection
    graph: Annotated[list[Any], doc("ops and scopes, in program order")]
    train: Train
    predict: Predict | None = None
    name: Annotated[
        Name | None, doc("name of the model; the name of the file by default")
    ] = None
    parameters: Annotated[
        list[ParameterRule],
        doc("settings for single parameters, which replace settings of their ops"),
    ] = msgspec.field(default_factory=list)


class CallParameter(Struct, forbid_unknown_fields=True):
    """A parameter of a `call` or `trace` op."""

    shape: Annotated[Shape, doc("a list of ints; [] for a scalar")]
    init: Annotated[Any, doc("the initializer")]
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32", "float64"], doc("a float dtype")
    ] = "float32"


class CallState(Struct, forbid_unknown_fields=True):
    """An entry of the state of a `call` or `trace` op."""

    shape: Annotated[Shape, doc("a list of ints; [] for a scalar")]
    init: Annotated[Any, doc("the initializer")]
    dtype: Annotated[
        Literal[
            "float16",
            "bfloat16",
            "float32",
            "float64",
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
        ],
        doc("a dtype of numbers"),
    ] = "float32"


class ParameterOp(CallParameter, kw_only=True):
    """A parameter that belongs to no layer: the op `parameter`."""

    name: Annotated[Name, doc("name of the parameter")]
    op: Literal["parameter"]


class CallOp(Struct, forbid_unknown_fields=True):
    """A JAX function in a file next to the spec: the op `call`.

    `fn(params, state, *inputs, rng, training)` returns its outputs and its new state.
    """

    name: Annotated[Name, doc("name of the op")]
    op: Literal["call"]
    fn: Annotated[str, doc("MODULE:FUNCTION, in a file next to the spec")]
    out: Annotated[
        str | list[dict[Name, TypeText]],
        doc('names and types of the results, such as [y: "float32[batch, 64]"]'),
    ]
    in_: Operands = msgspec.field(default=None, name="in")
    params: Annotated[
        dict[Name, CallParameter | str] | None,
        doc("shapes of new parameters, or names of parameters to share"),
    ] = None
    state: Annotated[
        dict[Name, CallState] | None,
        doc("values that the function updates"),
    ] = None
    batch: Annotated[
        Literal["rows", "whole"],
        doc("rows: row i of every output depends only on row i of the inputs"),
    ] = "whole"
    place: PlaceText = None


class Region(Struct, forbid_unknown_fields=True):
    """A part of a traced function that runs at one place."""

    out: Annotated[
        list[dict[str, TypeText]], doc("names and types of the results, in order")
    ]
    in_: Annotated[
        str | list[str] | None, doc("the operands: values and parameters")
    ] = msgspec.field(default=None, name="in")
    batch: Annotated[
        Literal["rows", "whole"] | None,
        doc(
            "in a function with `batch: replica`: whole if all results are equal in all"
            " parts, rows in an evaluation that works row by row"
        ),
    ] = None
    place: PlaceText = None


class TraceOp(Struct, forbid_unknown_fields=True):
    """A JAX function in a file next to the spec, cut into regions: the op `trace`.

    `placer.trace` writes this op.
    """

    name: Annotated[
        Name,
        doc("name of the result; several results are called NAME.out0, NAME.out1, …"),
    ]
    op: Literal["trace"]
    fn: Annotated[str, doc("MODULE:FUNCTION, in a file next to the spec")]
    args: Annotated[
        list[dict[str, Any]],
        doc("the arguments, such as [{make: model}, {in: x}]"),
    ]
    regions: Annotated[
        list[Region],
        doc(
            "the regions; each runs at one place. With `evaluation`, those of training"
        ),
    ]
    in_: Operands = msgspec.field(default=None, name="in")
    params: Annotated[
        dict[Name, CallParameter] | None,
        doc("parameters; regions call them NAME.KEY"),
    ] = None
    state: Annotated[
        dict[Name, CallState] | None,
        doc(
            "values that the function assigns in training; the new value of KEY is the"
            " result NAME.KEY.new of a region"
        ),
    ] = None
    evaluation: Annotated[
        list[Region] | None,
        doc("the regions in evaluations and predictions, if they differ"),
    ] = None
    results: Annotated[
        dict[str, list[str]] | None,
        doc("by result, its values in training and in evaluation"),
    ] = None
    batch: Annotated[
        Literal["rows", "whole", "replica"],
        doc(
            "rows: row i of every result depends only on row i of the inputs; replica:"
            " the function computes each part of the batch"
        ),
    ] = "whole"
    parts: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        doc("with `batch: replica`, the number of parts of the batch"),
    ] = None
    axis: Annotated[
        Name, doc("with `batch: replica`, the name of the axis over the parts")
    ] = "batch"
    place: Annotated[str | None, doc("place of regions without a place")] = None
