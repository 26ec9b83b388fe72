"""fc and matmul."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.activation import PLAIN as PLAIN_ACTIVATIONS


def plain_fc(x, w, b=0.0, activation="none", transpose_w=False):
    y = jnp.einsum("...i,io->...o", x, w.T if transpose_w else w) + b
    return y if activation == "none" else PLAIN_ACTIVATIONS[activation](y)


def plain_matmul(a, b, transpose_a=False, transpose_b=False):
    left = "...km" if transpose_a else "...mk"
    right = "...nk" if transpose_b else "...kn"
    return jnp.einsum(f"{left},{right}->...mn", a, b)


DIFFERENTIABLE = [
    Use("fc", ("float32[batch, 4]", "float32[4, 3]", "float32[3]")),
    Use("fc", ("float32[batch, 4]", "float32[4, 3]")),
    Use("fc", ("float32[5, 4]", "float32[4, 3]")),
    Use("fc", ("float32[batch, 2, 4]", "float32[4, 3]", "float32[3]")),
    Use("fc", ("float32[batch, 4]", "float32[3, 4]"), {"transpose_w": True}),
    *(
        Use(
            "fc",
            ("float32[batch, 4]", "float32[4, 3]", "float32[3]"),
            {"activation": activation},
        )
        for activation in PLAIN_ACTIVATIONS
    ),
    Use("matmul", ("float32[batch, 4]", "float32[4, 3]")),
    Use("matmul", ("float32[4, batch]", "float32[batch, 3]")),
    Use("matmul", ("float32[batch, 4]", "float32[batch, 3]"), {"transpose_a": True}),
    Use("matmul", ("float32[batch, 4]", "float32[batch, 4]"), {"transpose_b": True}),
    Use("matmul", ("float32[3, 4]", "float32[batch, 4]"), {"transpose_b": True}),
    Use("matmul", ("float32[batch, 2, 4]", "float32[batch, 4, 3]")),
    Use("matmul", ("float32[batch, 2, 4]", "float32[4, 3]")),
    Use("matmul", ("float32[batch, 2, 3, 4]", "float32[batch, 2, 4, 5]")),
    Use("matmul", ("float32[batch, 2, 3, 4]", "float32[2, 4, 5]")),
    Use(
        "matmul",
        ("float32[batch, 1, 4, 2]", "float32[5, 3, 4]"),
        {"transpose_a": True, "transpose_b": True},
    ),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "fc": plain_fc,
    "matmul": plain_matmul,
}
