"""The attributes that the compiler writes: those of structural ops, and those that passes
add to computed ops. Their `default` is UNSET: an op without the attribute does not have it.

`placer.compiler.graph.declared` looks the attribute of an op up; the parser of graphs and
the verifier refuse any other attribute, and a value of another type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from placer.ops.declaration import Attr
from placer.place import Place
from placer.plan.exchanges import Exchange, ExchangeName
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.initializers import Init
from placer.plan.settings.training.schedules import Rate
from placer.plan.settings.training.update_modes import Settings

Attributes = Mapping[str, Attr]
"""Attributes by their names."""


def own(
    name: str, type_: Any, doc: str, *, required: bool = False, passed: bool = False
) -> Attr:
    """Return an attribute that no spec writes. A program has it as an argument if it is
    `passed`."""
    return Attr(name, type_, doc, UNSET, required, compiler_only=not passed)


def attributes(*attrs: Attr) -> Attributes:
    """Return attributes by their names."""
    return {attr.name: attr for attr in attrs}


GROUP = own("group", int, "the number of the optimizer that the op belongs to")
GROUP_OF_UPDATE = own("group", int, "the number of the optimizer", required=True)
DECAY = own("decay", bool, "whether that optimizer applies weight decay")
INIT = own("init", Init, "the initializer", required=True)
INIT_OF_ROWS = own(
    "init", dict, "the initializer, as a distribution and its arguments", required=True
)
TRAINABLE = own("trainable", bool, "whether an optimizer may update the values")
WHOLE = own("whole", str, "the name of the parameter in the spec")
CLIP = own("clip", dict[str, float], "how gradients are clipped: {global_norm: 1.0}")
_BUCKET = own("bucket", int, "the number of the bucket of gradients that this is of")
_RING = own("ring", bool, "the message of this op goes from node to node, in a ring")

ANY: Final = attributes(
    own("segment", int, "the number of the jitted function that computes the op"),
    own("once", bool, "computed once, before the first batch of an evaluation"),
    own("after_bucket", int, "the op runs after the message of this bucket was sent"),
)
"""Those of ops of any kind."""

COMPUTED: Final = attributes(
    own("remat", int, "the number of the block that the backward pass recomputes"),
    own("again", bool, "the op is a recomputation"),
)
"""Those of computed ops, besides those of their declarations in `placer.ops`."""

GRADIENT: Final = attributes(
    own(
        "wrt",
        tuple[int, ...],
        "the operands of the forward op that have gradients",
        required=True,
    ),
    own("cotangents", tuple[int, ...], "the results of it with cotangents, if not all"),
)
"""Those of gradient ops, besides those of their forward ops."""

SUM: Final = attributes(
    own("of", str, "the value that this sum is the gradient of", required=True),
    own("part", bool, "this sums the gradients of one place; another sum the places"),
)
"""Those of `accumulate`."""

CONVERSION: Final = attributes(GROUP, _BUCKET, _RING)
"""Those of ops that change a layout."""

_OF_EXCHANGES: Final = attributes(
    own("first", int, "how many workers a step takes the gradients of"),
    own("every", int, "how many steps of a worker are between two exchanges"),
    own("dtype", str, "the dtype in messages"),
)

OPTIMIZER: Final = attributes(
    GROUP_OF_UPDATE,
    Attr(
        "rule",
        str,
        "the update rule",
        UNSET,
        required=True,
        choices=tuple(optimizers.RULES),
        compiler_only=True,
    ),
    own("learning_rate", Rate, "a number or a schedule", required=True),
    own("update", Settings, "how the workers agree on updates; by default sync"),
    CLIP,
    own("slicing", dict, "how parameters are sliced into blocks for servers"),
    own("bucket_cap_mb", float, "the size of a bucket of gradients, in MiB"),
    own("shard_state", bool, "whether each worker updates a range of the parameters"),
    own("all_reduce", str, "ring, if gradients are summed in one"),
    own("sum", Place, "the servers that sum gradients; workers update by the sum"),
    *(
        own(name, hyper.type, hyper.doc)
        for rule in optimizers.RULES.values()
        for name, hyper in optimizers.hyperparameters(rule).items()
    ),
)


def of_exchange(exchange: Exchange) -> Attributes:
    """Return the attributes of the ops of an exchange."""
    return attributes(GROUP, *(_OF_EXCHANGES[name] for name in exchange.settings))


def of_message(*more: Attr) -> Attributes:
    """Return the attributes of an op that sends or receives the message of an edge."""
    edge = own("edge", int, "the number of the edge", required=True)
    name = own("exchange", ExchangeName, "the exchange that the message belongs to")
    settings = _OF_EXCHANGES.values()
    return attributes(edge, *more, *CONVERSION.values(), name, *settings)
