"""position_embedding and positional_encoding."""

import jax.numpy as jnp

from support.op_use import Use


def plain_encoding(x, base=10000.0):
    _, length, size = x.shape
    rows = []
    for t in range(length):
        waves = [t / base ** (2 * (i // 2) / size) for i in range(size)]
        rows.append([(jnp.cos if i % 2 else jnp.sin)(w) for i, w in enumerate(waves)])
    return x + jnp.array(rows)


DIFFERENTIABLE = [
    Use("position_embedding", ("float32[batch, 3, 4]", "float32[3, 4]")),
    Use("position_embedding", ("float32[2, 3, 4]", "float32[3, 4]")),
    Use("positional_encoding", ("float32[batch, 3, 4]",)),
    Use("positional_encoding", ("float32[batch, 5, 3]",), {"base": 10.0}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "position_embedding": lambda x, table: x + table[None],
    "positional_encoding": plain_encoding,
}
