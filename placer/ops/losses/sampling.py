"""Classes sampled for each row, and losses over a row's label and its samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from placer.errors import OpError
from placer.ops.common.checks import check_attr, is_static
from placer.ops.declaration import (
    Attr,
    Attrs,
    Declaration,
    IndexBound,
    case,
    choice,
    flag,
    required,
)
from placer.ops.losses.loss_reduction import REDUCE, declare_loss, reduced_type
from placer.ops.operand import Operand, Types
from placer.ops.special.random import POSITION, STREAM, check_position
from placer.place.types import BATCH, MAX_DIM, TensorType

SAMPLER = choice(
    "sampler",
    "the distribution of the samples. `log_uniform`: class c has the probability"
    " log((c + 2) / (c + 1)) / log(classes + 1), for words numbered by decreasing"
    " frequency; `uniform`: all classes are equally likely",
    ("log_uniform", "uniform"),
)
SAMPLING = (
    required("classes", int, "the number of classes, at least 2"),
    required("num_sampled", int, "the number of classes drawn for each row"),
    SAMPLER,
)


def check_sampling(attrs: Attrs) -> None:
    """Raise OpError unless `classes` and `num_sampled` are valid."""
    valid = 2 <= attrs["classes"] <= MAX_DIM
    check_attr(attrs, "classes", valid, "at least 2 classes")
    valid = 1 <= attrs["num_sampled"] <= MAX_DIM
    check_attr(attrs, "num_sampled", valid, "num_sampled of at least 1")


def _infer_sample(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_position(types, 0)
    check_sampling(attrs)
    return (TensorType("int32", (BATCH, attrs["num_sampled"])),)


SAMPLE_CLASSES = Declaration(
    "sample_classes",
    "Draws classes for each row, with replacement. They depend only on the"
    " stream, the step and the row's index in the global batch.",
    (POSITION,),
    _infer_sample,
    attrs=(*SAMPLING, STREAM),
    differentiable=False,
    inserted=True,
    formula="out[i, j] = c with the probability P(c) of `sampler`",
    source="random bits by threefry2x32 (Salmon et al. 2011)",
    cases=(case("uint32[batch, 2]", classes=1000, num_sampled=8, stream=1),),
)


def check_rows(types: Types) -> None:
    """Raise OpError unless x has a vector and label a class for each row."""
    x, label = types
    if x.rank != 2 or not x.has_rows or not is_static(x.shape[1:]):
        raise OpError(f"needs rows [batch, size], 'x' is {x}", operand=0)
    if label.shape != (BATCH,):
        expected = TensorType(label.dtype, (BATCH,))
        raise OpError(
            f"needs one label for each row: 'label' must be {expected}, not {label}",
            operand=1,
        )


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, w, b, label, sampled = types
    check_rows((x, label))
    if w.rank != 2 or not is_static(w.shape) or w.shape[1] != x.shape[1]:
        raise OpError(f"needs w [classes, {x.shape[1]}], not {w}", operand=1)
    if b.shape != w.shape[:1]:
        raise OpError(f"needs b [{w.shape[0]}], not {b}", operand=2)
    samples = sampled.shape[1] if sampled.rank == 2 else 1
    if sampled != TensorType("int32", (BATCH, samples)):
        raise OpError(
            f"needs sampled int32[batch, num_sampled], not {sampled}", operand=4
        )
    return reduced_type(x.dtype, (BATCH,), attrs)


def _logits(types: Types) -> tuple[TensorType, int]:
    """Return the type of the logits of label and samples, and the size of x's rows."""
    x, sampled = types[0], types[4]
    samples = int(sampled.shape[1])
    return TensorType(x.dtype, (x.shape[0], 1 + samples)), int(x.shape[1])


def _flops(types: Types, attrs: Attrs) -> int:
    logits, size = _logits(types)
    return (2 * size + 10) * logits.numel()


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    logits, size = _logits(types)
    per_logit = {0: 2 * size, 1: 2 * size, 2: 1}
    return (1 + sum(per_logit.get(i, 0) for i in wrt)) * logits.numel() if wrt else 0


_sampled_loss = partial(
    declare_loss,
    operands=(
        Operand("x", "float, [batch, size]", dtype="float"),
        Operand("w", "the same dtype, [classes, size]", same="dtype"),
        Operand("b", "the same dtype, [classes]", same="dtype"),
        Operand("label", "integer, [batch], each in [0, classes)", dtype="integer"),
        Operand("sampled", "int32, [batch, num_sampled]"),
    ),
    flops=_flops,
    grad_flops=_grad_flops,
    saves=lambda types, attrs: (0, 1, 3, 4),
    residuals=lambda types, attrs: (_logits(types)[0],),
    index_bounds=lambda types, attrs: {3: IndexBound(int(types[1].shape[0]), scores=1)},
    inserted=True,
    cases=(
        case(
            "float32[batch, 16], float32[1000, 16], float32[1000],"
            " int32[batch], int32[batch, 8]"
        ),
    ),
)


def accidental_hits(default: bool) -> Attr:
    """Return the attribute that excludes samples equal to the row's label."""
    return flag(
        "remove_accidental_hits",
        "whether to ignore samples equal to the row's label",
        default=default,
    )


NCE_LOSS = _sampled_loss(
    "nce_loss",
    "Noise-contrastive estimation: the binary cross entropy of telling a row's"
    " label from its sampled classes. A label outside [0, classes) gives NaN.",
    result_types=_infer,
    attrs=(SAMPLER, accidental_hits(False), REDUCE),
    formula="loss = log(1 + exp(-z₀)) + Σ log(1 + exp(zⱼ)), where zⱼ = x · w[cⱼ] + b[cⱼ]"
    " - log(num_sampled · P(cⱼ)), c₀ is the label and cⱼ are the samples",
    source="Gutmann & Hyvärinen (2010), Mnih & Teh (2012); defaults of TensorFlow's"
    " nce_loss",
)
SAMPLED_SOFTMAX_LOSS = _sampled_loss(
    "sampled_softmax_loss",
    "The softmax cross entropy over a row's label and its sampled classes. Each"
    " logit is reduced by the logarithm of its class's expected number of draws."
    " Therefore the gradient approaches the gradient of the full softmax as"
    " `num_sampled` grows. A label outside [0, classes) gives NaN.",
    result_types=_infer,
    attrs=(SAMPLER, accidental_hits(True), REDUCE),
    formula="loss = log Σ exp(zⱼ) - z₀, zⱼ as in nce_loss",
    source="Jean et al. (2015); defaults of TensorFlow's sampled_softmax_loss",
)
