"""multi_head_attention, as the plain attention of plain projections."""

import jax.numpy as jnp

from support.op_use import Use
from support.op_uses.attention import plain_attention

KIND = "multi_head_attention"
X, MEMORY, OTHER = (
    "float32[batch, 3, 4]",
    "float32[batch, 5, 3]",
    "float32[batch, 5, 2]",
)


def _layer(width: int, key: int, value: int, size: int, bias: bool) -> list[str]:
    shapes = [(width, size), (key, size), (value, size), (size, width)]
    each = [[f"float32[{i}, {o}]", *[f"float32[{o}]"] * bias] for i, o in shapes]
    return [text for texts in each for text in texts]


def plain_layer(*operands, heads, causal=False):
    sequences = []
    for x in operands:
        if x.ndim != 3 or not jnp.issubdtype(x.dtype, jnp.floating):
            break
        sequences.append(x)
    rest = list(operands[len(sequences) :])
    is_weight = jnp.issubdtype(rest[0].dtype, jnp.floating)
    mask = None if is_weight else rest.pop(0)
    weights = rest[::2] if len(rest) == 8 else rest
    biases = rest[1::2] if len(rest) == 8 else [0.0] * 4
    sources = [sequences[min(i, len(sequences) - 1)] for i in range(3)]
    *projected, (w, b) = zip(weights, biases, strict=True)
    q, k, v = (x @ w + b for x, (w, b) in zip(sources, projected, strict=True))
    return plain_attention(q, k, v, mask, heads, causal) @ w + b


DIFFERENTIABLE = [
    Use(KIND, (X, *_layer(4, 4, 4, 4, True)), {"heads": 2}),
    Use(KIND, (X, *_layer(4, 4, 4, 6, False)), {"heads": 3, "causal": True}),
    Use(KIND, (X, "bool[batch, 3]", *_layer(4, 4, 4, 4, True)), {"heads": 1}),
    Use(KIND, (X, MEMORY, *_layer(4, 3, 3, 4, True)), {"heads": 2}),
    Use(
        KIND,
        (X, MEMORY, OTHER, "int32[batch]", *_layer(4, 3, 2, 4, True)),
        {"heads": 2},
        domain={3: (0, 7)},
    ),
    Use(KIND, (X, MEMORY, OTHER, *_layer(4, 3, 2, 2, False)), {"heads": 2}),
    Use(KIND, ("float32[2, 3, 4]", *_layer(4, 4, 4, 4, False)), {"heads": 2}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {KIND: plain_layer}
