"""nce and sampled_softmax: losses over many classes, estimated from a few samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from placer.ops.composite import Composite, CompositeUse, Part, derive_stream
from placer.ops.declaration import Attrs, LayerParameter, case
from placer.ops.linear.weighted import make_weights
from placer.ops.losses.loss_reduction import REDUCE, reduced_type
from placer.ops.losses.sampling import (
    SAMPLING,
    accidental_hits,
    check_rows,
    check_sampling,
)
from placer.ops.operand import Operand, Types
from placer.place.types import TensorType
from placer.plan.settings.data.sources import POSITION

_OPERANDS = (
    Operand("x", "float, [batch, size]", dtype="float"),
    Operand("label", "integer, [batch], each in [0, classes)", dtype="integer"),
    Operand("w", "the same dtype as x, [classes, size]", parameter=True),
    Operand("b", "the same dtype, [classes]", parameter=True),
)


def _check(types: Types, attrs: Attrs) -> None:
    check_rows(types)
    check_sampling(attrs)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    _check(types, attrs)
    x, classes = types[0], attrs["classes"]
    return make_weights(x.dtype, (classes, int(x.shape[1])), classes)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check(types[:2], attrs)
    return reduced_type(types[0].dtype, types[0].shape[:1], attrs)


def _expand(kind: str, use: CompositeUse) -> Iterator[Part]:
    x, label, w, b = use.operands
    drawn = {a.name: use.attrs[a.name] for a in SAMPLING}
    drawn["stream"] = derive_stream(use.seed, use.name)
    yield Part("sample_classes", (POSITION,), (".sampled",), drawn)
    keys = ("sampler", "remove_accidental_hits", "reduce")
    operands = (x, w, b, label, f"{use.name}.sampled")
    yield Part(f"{kind}_loss", operands, attrs={key: use.attrs[key] for key in keys})


def _composite(kind: str, doc: str, source: str) -> Composite:
    return Composite(
        kind,
        f"{doc} Creates the parameters `w` and `b`. The samples depend only on the"
        " spec's seed, the op's name, the step and the row's index in the global"
        " batch, not on the node that computes the row. An evaluation draws"
        " samples as well. A label outside [0, classes) gives NaN.",
        _OPERANDS,
        _infer,
        expand=partial(_expand, kind),
        attrs=(*SAMPLING, accidental_hits(kind == "sampled_softmax"), REDUCE),
        creates=_parameters,
        formula=f"see {kind}_loss",
        source=source,
        cases=(case("float32[batch, 16], int32[batch]", classes=1000, num_sampled=8),),
    )


NCE = _composite(
    "nce",
    "Noise-contrastive estimation over many classes. The loss is the binary cross"
    " entropy of telling a row's label from `num_sampled` noise classes, drawn"
    " for each row with replacement.",
    "Gutmann & Hyvärinen (2010), Mnih & Teh (2012); initial `w` as in fc",
)
SAMPLED_SOFTMAX = _composite(
    "sampled_softmax",
    "The softmax cross entropy over many classes, estimated from a row's label"
    " and `num_sampled` classes, drawn for each row with replacement.",
    "Jean et al. (2015); initial `w` as in fc",
)
