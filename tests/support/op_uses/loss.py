"""Losses with labels."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.activation import plain_softmax


def loss_uses(kind: str, *operands: tuple[str, ...], **domain) -> list[Use]:
    """Return uses of a loss for each tuple of operands and each reduction."""
    return [
        Use(kind, each, {"reduce": reduce} if reduce else {}, **domain)
        for each in operands
        for reduce in ("", "sum", "none")
    ]


def reduce_losses(losses, reduce="mean", count=None):
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduce]()


def plain_softmax_cross_entropy(
    logits, label, label_smoothing=0.0, class_weights=(), **kwargs
):
    classes = logits.shape[-1]
    target = jnp.eye(classes)[label]
    target = (1 - label_smoothing) * target + label_smoothing / classes
    weights = jnp.array(class_weights) if class_weights else jnp.ones(classes)
    logarithms = jnp.log(plain_softmax(logits))
    return reduce_losses(-(weights * target * logarithms).sum(-1), **kwargs)


def plain_sigmoid_cross_entropy(
    logits, label, label_smoothing=0.0, positive_weight=1.0, **kwargs
):
    target = (1 - label_smoothing) * label + label_smoothing * 0.5
    p = 1 / (1 + jnp.exp(-logits))
    negative, positive = -jnp.log(1 - p), -jnp.log(p)
    return reduce_losses(
        positive_weight * target * positive + (1 - target) * negative, **kwargs
    )


def plain_hinge(prediction, label, **kwargs):
    side = jnp.where(label == 1, 1.0, -1.0)
    return reduce_losses(
        jnp.where(side * prediction < 1, 1 - side * prediction, 0), **kwargs
    )


CLASSES = ("float32[batch, 3]", "int32[batch]")
WEIGHTS = [0.5, 2.0, 0.0]
BINARY = {1: (0, 2)}

DIFFERENTIABLE = [
    *loss_uses(
        "softmax_cross_entropy",
        CLASSES,
        ("float32[batch, 2, 3]", "int32[batch, 2]"),
        ("float32[8, 3]", "int32[8]"),
    ),
    Use("softmax_cross_entropy", ("float32[batch, 3]", "uint8[batch]")),
    Use("softmax_cross_entropy", CLASSES, {"label_smoothing": 0.1}),
    Use("softmax_cross_entropy", CLASSES, {"class_weights": WEIGHTS}),
    Use(
        "softmax_cross_entropy",
        ("float32[batch, 2, 3]", "int32[batch, 2]"),
        {"class_weights": WEIGHTS, "label_smoothing": 0.3, "reduce": "none"},
    ),
    *loss_uses(
        "sigmoid_cross_entropy",
        ("float32[batch, 2]", "int32[batch, 2]"),
        ("float32[batch]", "float32[batch]"),
        ("float32[8, 3]", "float32[8, 3]"),
    ),
    *(
        Use("sigmoid_cross_entropy", ("float32[batch, 2]", label), attrs, domain=BINARY)
        for label in ("int32[batch, 2]", "float32[batch, 2]")
        for attrs in (
            {"label_smoothing": 0.2},
            {"positive_weight": 3.0, "reduce": "none"},
            {"positive_weight": 0.5, "label_smoothing": 0.1},
        )
    ),
    *loss_uses(
        "hinge",
        ("float32[batch, 2]", "int32[batch, 2]"),
        ("float32[8]", "int32[8]"),
        domain=BINARY,
    ),
    Use("hinge", ("float32[batch]", "int8[batch]"), domain={1: (-1, 2)}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "softmax_cross_entropy": plain_softmax_cross_entropy,
    "sigmoid_cross_entropy": plain_sigmoid_cross_entropy,
    "hinge": plain_hinge,
}
