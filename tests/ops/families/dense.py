"""fc and matmul."""

import jax.numpy as jnp
from op_use import Use

from families.activation import plain_softmax


def plain_fc(x, w, b=0.0, activation="none", transpose_w=False):
    y = jnp.einsum("...i,io->...o", x, w.T if transpose_w else w) + b
    match activation:
        case "relu":
            return jnp.where(y > 0, y, 0.0)
        case "tanh":
            return (jnp.exp(y) - jnp.exp(-y)) / (jnp.exp(y) + jnp.exp(-y))
        case "sigmoid":
            return 1 / (1 + jnp.exp(-y))
        case "softmax":
            return plain_softmax(y)
    return y


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
        for activation in ("relu", "tanh", "sigmoid", "softmax")
    ),
    Use("matmul", ("float32[batch, 4]", "float32[4, 3]")),
    Use("matmul", ("float32[4, batch]", "float32[batch, 3]")),
    Use("matmul", ("float32[batch, 4]", "float32[batch, 3]"), {"transpose_a": True}),
    Use("matmul", ("float32[batch, 4]", "float32[batch, 4]"), {"transpose_b": True}),
    Use("matmul", ("float32[3, 4]", "float32[batch, 4]"), {"transpose_b": True}),
    Use("matmul", ("float32[batch, 2, 4]", "float32[batch, 4, 3]")),
    Use("matmul", ("float32[batch, 2, 4]", "float32[4, 3]")),
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
