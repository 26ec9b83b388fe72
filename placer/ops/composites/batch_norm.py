"""batch_norm: by the statistics of the global batch, kept for evaluation."""

from __future__ import annotations

from collections.abc import Iterator

from placer.errors import OpError
from placer.ops.common.checks import arity, need_float
from placer.ops.composite import Composite, Part, Written
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    LayerParameter,
    Operand,
    Types,
)
from placer.types import BATCH, TensorType

_OPERANDS = (
    Operand("x", "float, [batch, …, channels]"),
    Operand("scale", "[channels]", parameter=True),
    Operand("bias", "[channels]", parameter=True),
    Operand("running_mean", "[channels], no optimizer's", parameter=True),
    Operand("running_variance", "[channels], no optimizer's", parameter=True),
)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("batch_norm", _OPERANDS, types)
    _channels(types, attrs)
    return (types[0],)


def _channels(types: Types, attrs: Attrs) -> TensorType:
    need_float("batch_norm", "x", types, 0)
    x = types[0]
    if not x.has_rows or x.rank < 2 or x.shape[-1] == BATCH:
        raise OpError(
            f"batch_norm needs an operand [batch, …, channels] as 'x', not {x}",
            operand=0,
        )
    if not 0 <= attrs["momentum"] < 1:
        raise OpError(
            "batch_norm needs a momentum of at least 0 and below 1, not"
            f" {attrs['momentum']:g}",
            attr="momentum",
        )
    if not attrs["epsilon"] > 0:
        raise OpError(
            f"batch_norm needs an epsilon above 0, not {attrs['epsilon']:g}",
            attr="epsilon",
        )
    return TensorType(x.dtype, (x.shape[-1],))


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    if len(types) != 1:
        raise OpError(
            f"batch_norm needs 1 operand (x) beside its parameters, {len(types)} given"
        )
    each = _channels(types, attrs)
    return (
        LayerParameter("scale", each, "ones"),
        LayerParameter("bias", each, "zeros"),
        LayerParameter("running_mean", each, "zeros", state=True),
        LayerParameter("running_variance", each, "ones", state=True),
    )


def _parts(written: Written) -> Iterator[Part]:
    name, attrs = written.name, written.attrs
    x, scale, bias, *running = written.operands
    epsilon = {"epsilon": attrs["epsilon"]}
    if attrs["scope"] == "batch":
        over = {"axis": tuple(range(written.types[0].rank - 1))}
        used = (f"{name}.used_mean", f"{name}.used_variance")
        yield Part("reduce_mean", (x,), (".mean",), over)
        yield Part("variance", (x, f"{name}.mean"), (".variance",))
        for what, old in zip(("mean", "variance"), running, strict=True):
            yield Part("if_training", (f"{name}.{what}", old), (f".used_{what}",))
        yield Part("normalize", (x, *used, scale, bias), ("",), epsilon)
    else:
        own = (".replica", ".mean", ".variance")
        yield Part("replica_norm", (x, scale, bias), own, epsilon)
        yield Part("normalize", (x, *running, scale, bias), (".running",), epsilon)
        yield Part("if_training", (f"{name}.replica", f"{name}.running"))
    for what, old in zip(("mean", "variance"), running, strict=True):
        new = f".running_{what}.new"
        decay = {"momentum": attrs["momentum"]}
        yield Part("moving_average", (old, f"{name}.{what}"), (new,), decay)
        yield Part("store", (old, name + new), ())


BATCH_NORM = Composite(
    "batch_norm",
    "Each channel with mean 0 and variance 1 over the *global* batch and all other"
    " dimensions, then scaled and shifted. Places add up their sums, forward and"
    " backward, so the statistics do not depend on the placement. `running_mean` and"
    " `running_variance` follow them, and stand in their place in evaluation.",
    _OPERANDS,
    _infer,
    _parts,
    attrs=(
        Attr(
            "momentum", float, "what stays of a running value in a step", default=0.99
        ),
        Attr("epsilon", float, "added to the variance", default=1e-5),
        Attr(
            "scope",
            str,
            "whose statistics: the global batch's, or those of the rows that each place"
            " has, which is cheaper and depends on how many places there are",
            default="batch",
            choices=("batch", "replica"),
        ),
    ),
    parameters=_parameters,
    formula="out = scale · (x - mean) / √(variance + epsilon) + bias;"
    " running = momentum · running + (1 - momentum) · new",
    source="Ioffe and Szegedy (2015); the variance is the biased one, as in Keras",
    cases=(
        Case(("float32[batch, 64]",)),
        Case(("float32[batch, 8, 8, 32]",), {"scope": "replica"}),
    ),
    example="{name: normed, op: batch_norm, in: conv1}",
)
