"""nce and sampled_softmax: losses over many classes, of which a few are drawn a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from placer.config.sources import POSITION
from placer.errors import OpError
from placer.ops.common.checks import arity
from placer.ops.composite import Composite, Part, Written, stream
from placer.ops.declaration import Attr, Attrs, Case, LayerParameter, Operand, Types
from placer.ops.losses.loss_reduction import REDUCE, reduced
from placer.ops.losses.sampling import (
    SAMPLER,
    apart_by,
    check_drawn,
    check_rows,
)
from placer.types import TensorType

_OPERANDS = (
    Operand("x", "float, [batch, size]"),
    Operand("label", "integer, [batch], each in [0, classes)"),
    Operand("w", "the same dtype as x, [classes, size]", parameter=True),
    Operand("b", "the same dtype, [classes]", parameter=True),
)
_ATTRS = (
    Attr("classes", int, "how many there are", required=True),
    Attr("num_sampled", int, "how many are drawn for a row", required=True),
    SAMPLER,
)


def _check(kind: str, types: Types, attrs: Attrs) -> None:
    if len(types) != 2:
        raise OpError(
            f"{kind} needs 2 operands (x, label) beside its parameters,"
            f" {len(types)} given"
        )
    check_rows(kind, types)
    check_drawn(kind, attrs)


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
        arity(kind, _OPERANDS, types)
        _check(kind, types[:2], attrs)
        return reduced(types[0].dtype, types[0].shape[:1], attrs)

    return infer


def _parts(loss: str) -> Callable[[Written], Iterator[Part]]:
    def parts(written: Written) -> Iterator[Part]:
        x, label, w, b = written.operands
        attrs = written.attrs
        drawn = {
            "classes": attrs["classes"],
            "num_sampled": attrs["num_sampled"],
            "sampler": attrs["sampler"],
            "stream": stream(written.seed, written.name),
        }
        yield Part("sample_classes", (POSITION,), (".sampled",), drawn)
        how = {
            key: attrs[key] for key in ("sampler", "remove_accidental_hits", "reduce")
        }
        taken = (x, w, b, label, f"{written.name}.sampled")
        yield Part(loss, taken, attrs=how)

    return parts


def _composite(kind: str, loss: str, doc: str, formula: str, source: str) -> Composite:
    return Composite(
        kind,
        f"{doc} It makes its parameters `w` and `b`. What is drawn is a function of the"
        " spec's seed, the op's name, the step and the row's number in the global batch,"
        " so it does not depend on where a row is computed; an evaluation draws, too.",
        _OPERANDS,
        _infer(kind),
        _parts(loss),
        attrs=(*_ATTRS, apart_by(kind == "sampled_softmax"), REDUCE),
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
    "Noise-contrastive estimation over many classes: a row's own class against"
    " `num_sampled` that are drawn for it, with replacement.",
    "see nce_loss",
    "Gutmann & Hyvärinen (2010), Mnih & Teh (2012); `w` begins as in fc",
)
SAMPLED_SOFTMAX = _composite(
    "sampled_softmax",
    "sampled_softmax_loss",
    "The cross entropy of softmax over many classes, estimated by a row's own class and"
    " `num_sampled` that are drawn for it, with replacement.",
    "see sampled_softmax_loss",
    "Jean et al. (2015); `w` begins as in fc",
)
