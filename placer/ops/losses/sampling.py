"""Classes drawn for each row, and losses of a row's own class against those."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.errors import OpError
from placer.ops.common.checks import (
    arity,
    each_row,
    ints,
    need_float,
    need_integer,
    need_same_dtype,
)
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Types,
)
from placer.ops.losses.loss_reduction import REDUCE, counts, reduced, rows
from placer.types import BATCH, LARGEST, TensorType

SAMPLER = Attr(
    "sampler",
    str,
    "how likely each class is to be drawn: `log_uniform`, log((c + 2) / (c + 1)) /"
    " log(classes + 1), as words numbered by falling frequency are, or all alike",
    default="log_uniform",
    choices=("log_uniform", "uniform"),
)
_STREAM = Attr("stream", int, "which random bits, below 2⁶³", required=True)
_POSITION = TensorType("uint32", (BATCH, 2))
_DRAW = (
    Operand("position", "uint32[batch, 2]: the step, and the row in the global batch"),
)


def check_drawn(kind: str, attrs: Attrs) -> None:
    """OpError unless there are classes to draw from, and some are drawn."""
    if not 2 <= attrs["classes"] <= LARGEST:
        raise OpError(
            f"{kind} needs at least 2 classes, not {attrs['classes']}", attr="classes"
        )
    if not 1 <= attrs["num_sampled"] <= LARGEST:
        raise OpError(
            f"{kind} needs num_sampled of at least 1, not {attrs['num_sampled']}",
            attr="num_sampled",
        )


def _infer_sample(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind = "sample_classes"
    arity(kind, _DRAW, types)
    if types[0] != _POSITION:
        raise OpError(
            f"{kind} needs a position {_POSITION}, 'position' is {types[0]}", operand=0
        )
    check_drawn(kind, attrs)
    return (TensorType("int32", (BATCH, attrs["num_sampled"])),)


SAMPLE_CLASSES = Declaration(
    "sample_classes",
    "Classes drawn for each row, with replacement. What is drawn for a row is a function"
    " of the stream, the step and the row in the global batch.",
    _DRAW,
    _infer_sample,
    each_row,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: 0,
    attrs=(
        Attr("classes", int, "how many there are", required=True),
        Attr("num_sampled", int, "how many are drawn for a row", required=True),
        SAMPLER,
        _STREAM,
    ),
    differentiable=False,
    inserted=True,
    formula="out[i, j] = the class whose share of all likelihoods holds a random word",
    source="threefry2x32 (Salmon et al. 2011)",
    cases=(
        Case(
            ("uint32[batch, 2]",),
            {"classes": 1000, "num_sampled": 8, "stream": 1},
        ),
    ),
    example="%l.sampled = sample_classes(%batch.position)"
    " {classes = 1000, num_sampled = 8, stream = 1}",
)

_OPERANDS = (
    Operand("x", "float, [batch, size]"),
    Operand("w", "the same dtype, [classes, size]"),
    Operand("b", "the same dtype, [classes]"),
    Operand("label", "integer, [batch], each in [0, classes)"),
    Operand("sampled", "int32, [batch, num_sampled]"),
)


def check_rows(kind: str, types: Types) -> None:
    """OpError unless `x` and `label`, the first of these, are a vector and a class a
    row."""
    need_float(kind, "x", types, 0)
    x, label = types
    if x.rank != 2 or not x.has_rows or not ints(x.shape[1:]):
        raise OpError(f"{kind} needs rows [batch, size], 'x' is {x}", operand=0)
    need_integer(kind, "label", types, 1)
    if label.shape != (BATCH,):
        wanted = TensorType(label.dtype, (BATCH,))
        raise OpError(
            f"{kind} needs one label a row: 'label' must be {wanted}, it is {label}",
            operand=1,
        )


def _infer(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _OPERANDS, types)
        x, w, b, label, sampled = types
        check_rows(kind, (x, label))
        need_same_dtype(kind, ("x", "w", "b"), (x, w, b))
        if w.rank != 2 or not ints(w.shape) or w.shape[1] != x.shape[1]:
            raise OpError(
                f"{kind} needs w [classes, {x.shape[1]}], it is {w}", operand=1
            )
        if b.shape != w.shape[:1]:
            raise OpError(f"{kind} needs b [{w.shape[0]}], it is {b}", operand=2)
        drawn = sampled.shape[1] if sampled.rank == 2 else 1
        if sampled != TensorType("int32", (BATCH, drawn)):
            raise OpError(
                f"{kind} needs sampled int32[batch, num_sampled], it is {sampled}",
                operand=4,
            )
        return reduced(x.dtype, (BATCH,), attrs)

    return infer


def _logits(types: Types) -> tuple[TensorType, int]:
    """The logits of a row's own class and of those drawn, and the size of a product."""
    x, sampled = types[0], types[4]
    drawn = int(sampled.shape[1])
    return TensorType(x.dtype, (x.shape[0], 1 + drawn)), int(x.shape[1])


def _flops(types: Types, attrs: Attrs) -> int:
    logits, size = _logits(types)
    return (2 * size + 10) * logits.numel()


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    logits, size = _logits(types)
    each = {0: 2 * size, 1: 2 * size, 2: 1}
    return (1 + sum(each.get(i, 0) for i in wrt)) * logits.numel() if wrt else 0


def _declared(
    kind: str, doc: str, formula: str, source: str, apart: bool
) -> Declaration:
    return Declaration(
        kind,
        doc,
        _OPERANDS,
        _infer(kind),
        rows,
        _flops,
        _grad_flops,
        attrs=(SAMPLER, apart_by(apart), REDUCE),
        saves=lambda types, attrs: (0, 1, 3, 4),
        residuals=lambda types, attrs: (_logits(types)[0],),
        counts=counts,
        indexes=lambda types, attrs: {3: int(types[1].shape[0])},
        inserted=True,
        formula=formula,
        source=source,
        cases=(
            Case(
                (
                    "float32[batch, 16]",
                    "float32[1000, 16]",
                    "float32[1000]",
                    "int32[batch]",
                    "int32[batch, 8]",
                )
            ),
        ),
        example=f"%l = {kind}(%h, %l.w, %l.b, %label, %l.sampled)",
    )


def apart_by(default: bool) -> Attr:
    """Whether a drawn class that is the row's own counts."""
    return Attr(
        "remove_accidental_hits",
        bool,
        "leave out what was drawn and is the row's own class",
        default=default,
    )


NCE_LOSS = _declared(
    "nce_loss",
    "Noise-contrastive estimation: the cross entropy of telling a row's own class from"
    " those drawn for it. A label outside [0, classes) gives NaN.",
    "loss = log(1 + exp(-z₀)) + Σ log(1 + exp(zⱼ)), zⱼ = x · w[cⱼ] + b[cⱼ] -"
    " log(num_sampled · P(cⱼ)), c₀ the label and cⱼ the classes drawn",
    "Gutmann & Hyvärinen (2010), Mnih & Teh (2012); defaults of TensorFlow's nce_loss",
    False,
)
SAMPLED_SOFTMAX_LOSS = _declared(
    "sampled_softmax_loss",
    "The cross entropy of softmax over a row's own class and those drawn for it, each"
    " logit less the logarithm of how often its class is drawn: in expectation the"
    " gradient of the whole softmax, the more nearly the more are drawn. A label outside"
    " [0, classes) gives NaN.",
    "loss = log Σ exp(zⱼ) - z₀, zⱼ as in nce_loss",
    "Jean et al. (2015); defaults of TensorFlow's sampled_softmax_loss",
    True,
)

DECLARATIONS = (SAMPLE_CLASSES, NCE_LOSS, SAMPLED_SOFTMAX_LOSS)
