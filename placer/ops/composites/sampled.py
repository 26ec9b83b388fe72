"""nce and sampled_softmax: losses over many classes, estimated from a few samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from placer.config.sources import POSITION
from placer.errors import OpError
from placer.ops.common.checks import check_arity
from placer.ops.composite import Composite, CompositeUse, Part, derive_stream
from placer.ops.declaration import Attr, Attrs, Case, LayerParameter, Operand, Types
from placer.ops.losses.loss_reduction import REDUCE, reduced_type
from placer.ops.losses.sampling import (
    SAMPLER,
    accidental_hits,
    check_rows,
    check_sampling,
)
from placer.types import TensorType

_OPERANDS = (
    Operand("x", "float, [batch, size]"),
    Operand("label", "integer, [batch], each in [0, classes)"),
    Operand("w", "the same dtype as x, [classes, size]", parameter=True),
    Operand("b", "the same dtype, [classes]", parameter=True),
)
_ATTRS = (
    Attr("classes", int, "the number of classes, at least 2", required=True),
    Attr("num_sampled", int, "the number of classes drawn for each row", required=True),
    SAMPLER,
)


def _check(kind: str, types: Types, attrs: Attrs) -> None:
    if len(types) != 2:
        raise OpError(
            f"{kind} needs 2 operands (x, label) beside its parameters,"
            f" {len(types)} given"
        )
    check_rows(kind, types)
    check_sampling(kind, attrs)


def _parameters(kind: str) -> Callable[[Types, Attrs], tuple[LayerParameter, ...]]:
    def parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
        _check(kind, types, attrs)
        x, classes = types[0], attrs["classes"]
        w = TensorType(x.dtype, (classes, x.shape[1]))
        return (
            LayerParameter("w", w, "xavier_uniform"),
            LayerParameter("b", TensorType(x.dtype, (classes,)), "zeros"),
        )

    return parameters


def _infer(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        check_arity(kind, _OPERANDS, types)
        _check(kind, types[:2], attrs)
        return reduced_type(types[0].dtype, types[0].shape[:1], attrs)

    return infer


def _expand(loss: str) -> Callable[[CompositeUse], Iterator[Part]]:
    def expand(use: CompositeUse) -> Iterator[Part]:
        x, label, w, b = use.operands
        attrs = use.attrs
        sample_attrs = {
            "classes": attrs["classes"],
            "num_sampled": attrs["num_sampled"],
            "sampler": attrs["sampler"],
            "stream": derive_stream(use.seed, use.name),
        }
        yield Part("sample_classes", (POSITION,), (".sampled",), sample_attrs)
        loss_attrs = {
            key: attrs[key] for key in ("sampler", "remove_accidental_hits", "reduce")
        }
        operands = (x, w, b, label, f"{use.name}.sampled")
        yield Part(loss, operands, attrs=loss_attrs)

    return expand


def _composite(kind: str, loss: str, doc: str, formula: str, source: str) -> Composite:
    return Composite(
        kind,
        f"{doc} Creates the parameters `w` and `b`. The samples are a function of the"
        " spec's seed, the op's name, the step and the row's index in the global batch,"
        " so they do not depend on where a row is computed. An evaluation samples, too."
        " A label outside [0, classes) gives NaN.",
        _OPERANDS,
        _infer(kind),
        _expand(loss),
        attrs=(*_ATTRS, accidental_hits(kind == "sampled_softmax"), REDUCE),
        parameters=_parameters(kind),
        formula=formula,
        source=source,
        cases=(
            Case(
                ("float32[batch, 16]", "int32[batch]"),
                {"classes": 1000, "num_sampled": 8},
            ),
        ),
        example=f"{{name: loss, op: {kind}, in: [h, word], classes: 10000,"
        " num_sampled: 64}",
    )


NCE = _composite(
    "nce",
    "nce_loss",
    "Noise-contrastive estimation over many classes: the binary cross entropy of"
    " telling a row's label from `num_sampled` classes that are drawn for it with"
    " replacement.",
    "see nce_loss",
    "Gutmann & Hyvärinen (2010), Mnih & Teh (2012); initial `w` as in fc",
)
SAMPLED_SOFTMAX = _composite(
    "sampled_softmax",
    "sampled_softmax_loss",
    "The softmax cross entropy over many classes, estimated from a row's label and"
    " `num_sampled` classes that are drawn for it with replacement.",
    "see sampled_softmax_loss",
    "Jean et al. (2015); initial `w` as in fc",
)
