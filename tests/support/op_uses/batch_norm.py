"""The ops that batch_norm expands to."""

from jax.lax import stop_gradient

from support.op_use import Use

_POSITIVE = (0.5, 2.0)


def plain_variance(x, mean, count=None):
    return ((x - stop_gradient(mean)) ** 2).mean(range(x.ndim - 1))


def plain_normalize(x, mean, variance, scale, bias, epsilon):
    return scale * (x - mean) / (variance + epsilon) ** 0.5 + bias


def plain_replica_norm(x, scale, bias, epsilon, count=None):
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axes), x.var(axes)
    y = plain_normalize(x, mean, variance, scale, bias, epsilon)
    return y, stop_gradient(mean), stop_gradient(variance)


DIFFERENTIABLE = [
    *(Use("variance", (x, "float32[3]")) for x in ("float32[batch, 3]", "float32[batch, 2, 2, 3]", "float32[4, 3]")),
    *(
        Use("normalize", (x, *["float32[3]"] * 4), {"epsilon": 0.01}, {2: _POSITIVE})
        for x in ("float32[batch, 3]", "float32[batch, 2, 2, 3]")
    ),
    *(
        Use("replica_norm", (x, "float32[3]", "float32[3]"), {"epsilon": 0.01})
        for x in ("float32[4, 3]", "float32[4, 2, 2, 3]")
    ),
]  # fmt: skip

WITHOUT_GRADIENT = [
    Use("moving_average", ("float32[3]", "float32[3]"), {"momentum": 0.9}),
]

PLAIN = {
    "variance": plain_variance,
    "normalize": plain_normalize,
    "replica_norm": plain_replica_norm,
}
