"""batch_norm: normalization by statistics of the batch, with moving averages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from placer.errors import OpError
from placer.ops.common.checks import check_attr
from placer.ops.composite import Composite, CompositeUse, Part
from placer.ops.declaration import Attr, Attrs, LayerParameter, case, choice
from placer.ops.operand import Operand, Types
from placer.place.types import BATCH, TensorType

_OPERANDS = (
    Operand("x", "float, [batch, …, channels]", dtype="float"),
    Operand("scale", "[channels]", parameter=True),
    Operand("bias", "[channels]", parameter=True),
    Operand("running_mean", "[channels], not trained", parameter=True),
    Operand("running_variance", "[channels], not trained", parameter=True),
)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _channel_type(types, attrs)
    return (types[0],)


def _channel_type(types: Types, attrs: Attrs) -> TensorType:
    x = types[0]
    if not x.has_rows or x.rank < 2 or x.shape[-1] == BATCH:
        raise OpError(
            f"needs an operand [batch, …, channels] as 'x', not {x}", operand=0
        )
    check = partial(check_attr, attrs, spec="g")
    needed = "a momentum of at least 0 and below 1"
    check("momentum", 0 <= attrs["momentum"] < 1, needed)
    check("epsilon", attrs["epsilon"] > 0, "an epsilon above 0")
    return TensorType(x.dtype, (x.shape[-1],))


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    channel = _channel_type(types, attrs)
    return (
        LayerParameter("scale", channel, "ones"),
        LayerParameter("bias", channel, "zeros"),
        LayerParameter("running_mean", channel, "zeros", state=True),
        LayerParameter("running_variance", channel, "ones", state=True),
    )


def _expand(use: CompositeUse) -> Iterator[Part]:
    name, attrs = use.name, use.attrs
    x, scale, bias, *running = use.operands
    epsilon = {"epsilon": attrs["epsilon"]}
    if _keeps(name, running, use.kept_states):
        yield Part("normalize", (x, *running, scale, bias), ("",), epsilon)
        return
    if attrs["scope"] == "batch":
        axes = {"axis": tuple(range(use.types[0].rank - 1))}
        used = (f"{name}.used_mean", f"{name}.used_variance")
        yield Part("reduce_mean", (x,), (".mean",), axes)
        yield Part("variance", (x, f"{name}.mean"), (".variance",))
        for statistic, old in zip(("mean", "variance"), running, strict=True):
            chosen = (f".used_{statistic}",)
            yield Part("if_training", (f"{name}.{statistic}", old), chosen)
        yield Part("normalize", (x, *used, scale, bias), ("",), epsilon)
    else:
        results = (".replica", ".mean", ".variance")
        yield Part("replica_norm", (x, scale, bias), results, epsilon)
        yield Part("normalize", (x, *running, scale, bias), (".running",), epsilon)
        yield Part("if_training", (f"{name}.replica", f"{name}.running"))
    for statistic, old in zip(("mean", "variance"), running, strict=True):
        new = f".running_{statistic}.new"
        decay = {"momentum": attrs["momentum"]}
        yield Part("moving_average", (old, f"{name}.{statistic}"), (new,), decay)
        yield Part("store", (old, name + new), ())


def _keeps(name: str, running: Sequence[str], kept: AbstractSet[str]) -> bool:
    """Return True if the moving averages stay constant; raise OpError if only one does."""
    keeping = [each for each in running if each in kept]
    if len(keeping) == 1:
        (other,) = {*running} - {*keeping}
        raise OpError(
            f"keeps '{keeping[0]}' (trainable: false), but updates '{other}'",
            attr="op",
            hint=f'write {{match: "{name}.running_*", trainable: false}}',
        ).of("batch_norm")
    return bool(keeping)


BATCH_NORM = Composite(
    "batch_norm",
    "Batch normalization: scales each channel to mean 0 and variance 1 over the"
    " *global* batch and all other dimensions, then applies `scale` and `bias`."
    " All nodes share their statistics in the forward and in the backward, so the"
    " result does not depend on the placement. Training updates the moving"
    " averages `running_mean` and `running_variance`; an evaluation uses them"
    " instead of the batch's statistics. With `trainable: false` for both in"
    " `parameters`, they keep their initial values, and training uses them as"
    " well. Creates the parameters `scale`, `bias`, `running_mean` and"
    " `running_variance`.",
    _OPERANDS,
    _infer,
    expand=_expand,
    attrs=(
        Attr(
            "momentum",
            float,
            "the weight of the old value in a moving average, in [0, 1)",
            default=0.99,
        ),
        Attr("epsilon", float, "added to the variance, above 0", default=1e-5),
        choice(
            "scope",
            "`batch`: statistics of the global batch. `replica`: statistics of"
            " each node's rows, which are cheaper and also work asynchronously,"
            " but the result depends on the number of nodes. The moving averages"
            " then take the mean of the nodes' statistics, weighted by rows; in"
            " asynchronous training, they take the first worker's",
            ("batch", "replica"),
        ),
    ),
    creates=_parameters,
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias;"
    " running = momentum · running + (1 - momentum) · new",
    source="Ioffe and Szegedy (2015); the variance is biased (divided by n), as in Keras",
    cases=(
        case("float32[batch, 64]"),
        case("float32[batch, 8, 8, 32]", scope="replica"),
    ),
)
