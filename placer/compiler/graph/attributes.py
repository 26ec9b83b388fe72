"""Attributes that only the compiler writes: of structural ops, and added to computed
ops.

Their `default` is UNSET: an op may lack the attribute. `placer.compiler.graph.declared`
looks up attributes of an op. The parser of graphs and the verifier reject undeclared
attributes and values of a wrong type.
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
from placer.plan.settings.training.transformations import Transformation
from placer.plan.settings.training.update_modes import Settings

Attributes = Mapping[str, Attr]
"""Attributes by name."""


def own(
    name: str, type_: Any, doc: str, *, required: bool = False, passed: bool = False
) -> Attr:
    """Return an attribute that no spec writes. If `passed`, it becomes an argument in
    programs."""
    return Attr(name, type_, doc, UNSET, required, compiler_only=not passed)


def attributes(*attrs: Attr) -> Attributes:
    return {attr.name: attr for attr in attrs}


GROUP = own("group", int, "index of the optimizer that the op belongs to")
GROUP_OF_UPDATE = own("group", int, "index of the optimizer", required=True)
DECAY = own("decay", bool, "whether the optimizer applies weight decay")
INIT = own("init", Init, "the initializer", required=True)
INIT_OF_ROWS = own(
    "init", dict, "the initializer: a distribution and its arguments", required=True
)
TRAINABLE = own("trainable", bool, "whether an optimizer updates the values")
WHOLE = own("whole", str, "name of the parameter in the spec")
CLIP = own(
    "clip", dict[str, float], "how gradients are clipped, such as {global_norm: 1.0}"
)
_BUCKET = own("bucket", int, "index of the bucket that holds this gradient")
_RING = own("ring", bool, "whether the message passes from node to node in a ring")

ANY: Final = attributes(
    own("segment", int, "index of the jitted function that computes the op"),
    own(
        "once",
        bool,
        "whether the op runs once, before the first batch of an evaluation",
    ),
    own(
        "after_bucket",
        int,
        "index of a bucket; the op runs after the bucket's message is sent",
    ),
)
"""Attributes of all ops."""

COMPUTED: Final = attributes(
    own("remat", int, "index of the block that the backward pass recomputes"),
    own("again", bool, "whether the op is a recomputation"),
)
"""Attributes of computed ops, in addition to those that `placer.ops` declares."""

GRADIENT: Final = attributes(
    own(
        "wrt",
        tuple[int, ...],
        "indices of the forward op's operands that have gradients",
        required=True,
    ),
    own(
        "cotangents",
        tuple[int, ...],
        "indices of the forward op's results that have cotangents; by default all",
    ),
)
"""Attributes of gradient ops, in addition to the forward op's attributes."""

SUM: Final = attributes(
    own("of", str, "the value that this sum is the gradient of", required=True),
    own(
        "part",
        bool,
        "whether the sum covers one place only; another sum adds up the places",
    ),
)
"""Attributes of `accumulate`."""

CONVERSION: Final = attributes(GROUP, _BUCKET, _RING)
"""Attributes of ops that change a layout."""

_OF_EXCHANGES: Final = attributes(
    own("first", int, "number of workers that a step uses gradients of"),
    own("every", int, "number of steps of a worker between two exchanges"),
    own("dtype", str, "dtype in messages"),
)

OPTIMIZER: Final = attributes(
    GROUP_OF_UPDATE,
    Attr(
        "rule",
        str,
        "the update rule",
        UNSET,
        required=True,
        choices=optimizers.RULE_NAMES,
        compiler_only=True,
    ),
    own("learning_rate", Rate, "a number or a schedule"),
    own("fn", str, "the function that returns the optax optimizer"),
    own("config", str, "its arguments by name, as JSON"),
    own("eval_params", str, "the function that computes values for evaluations"),
    own("transformation", Transformation, "the facts of an optax optimizer"),
    own("update", Settings, "how the workers agree on updates; sync by default"),
    CLIP,
    own("slicing", dict, "how parameters are sliced into blocks for servers"),
    own("bucket_cap_mb", float, "size of a bucket of gradients, in MiB"),
    own(
        "shard_state",
        bool,
        "whether each worker updates only a range of the parameters",
    ),
    own("all_reduce", str, "ring, if gradients are summed in a ring"),
    own("sum", Place, "place of servers that sum gradients; workers apply the sum"),
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
