"""Powers and logarithms."""

import jax.numpy as jnp

from support.op_use import Use


def plain_pow(x, exponent):
    if exponent == int(exponent) and exponent >= 0:
        out = jnp.ones_like(x)
        for _ in range(int(exponent)):
            out = out * x
        return out
    return x**exponent


POSITIVE = {0: (0.3, 1.7)}

DIFFERENTIABLE = [
    Use("square", ("float32[batch, 4]",)),
    Use("sqrt", ("float32[batch, 4]",), domain=POSITIVE),
    *(
        Use("pow", ("float32[batch, 4]",), {"exponent": exponent})
        for exponent in (0.0, 1.0, 2.0, 3.0, -1.0, -2.0)
    ),
    Use("pow", ("float32[batch, 4]",), {"exponent": 0.3}, domain=POSITIVE),
    Use("pow", ("float32[batch, 4]",), {"exponent": -1.5}, domain=POSITIVE),
    Use("exp", ("float32[batch, 4]",)),
    Use("log", ("float32[batch, 4]",), domain=POSITIVE),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "square": lambda x: x**2,
    "sqrt": lambda x: x**0.5,
    "pow": plain_pow,
    "exp": jnp.exp,
    "log": jnp.log,
}
