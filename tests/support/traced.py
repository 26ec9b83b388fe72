"""User code for tests of `placer.trace`: functions, and programs that trace them.

`FIRST` and `SECOND` are the places of the two halves of each function.
"""

import equinox
import jax
import jax.numpy as jnp
from flax import nnx

import placer
from placer import Program, layers, optimizer, place_guard

FIRST, SECOND = "", ""
BATCH = None
SECTIONS: dict = {"nodes": {"worker": {"count": 1}}}
AROUND, OPTIMIZER = "/node:worker", "/node:worker:0/cpu"


# Plain: arrays in dicts and lists.
def plain(params, x, *, scale=0.5):
    with place_guard(FIRST):
        h = jnp.tanh(x @ params["up"])
        half = scale * params["down"][0]  # used at both places
        z = h @ half.T
    with place_guard(SECOND):
        y = jnp.tanh((x + z) @ params["up"]) @ half.T + params["down"][1]
        return y.sum(-1), jnp.sum(half**2)


def plain_model():
    keys = jax.random.split(jax.random.key(1))
    up = jax.random.normal(keys[0], (4, 8)) / 2
    return {
        "up": up,
        "down": [jax.random.normal(keys[1], (4, 8)) / 2, jnp.zeros(4)],
    }


# Flax: attention over the two halves of a row, with the dropout switched off.
class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(1, 2, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(2, rngs=rngs)
        self.out = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)])
        self.drop = nnx.Dropout(0.25, rngs=rngs)


def flax_model():
    block = Block(nnx.Rngs(0))
    block.eval()
    return block


def flax(model, x):
    with place_guard(FIRST):
        lines = x.reshape(-1, 2, 2)
        lines = lines + model.attention(model.norm(lines))
    with place_guard(SECOND):
        h = model.out[0](lines.reshape(-1, 4))
        h = model.drop(nnx.gelu(h))
        return model.out[1](h)[:, 0], jnp.sum(model.out[1].kernel[...] ** 2)


# Equinox: a model that is a global name, with functions among its leaves.
equinox_model = equinox.nn.MLP(4, "scalar", 8, 2, key=jax.random.key(2))


def equinox_(model, x):
    with place_guard(FIRST):
        h = jax.vmap(lambda row: jnp.tanh(model.layers[0](row)))(x)
    with place_guard(SECOND):
        h = jax.vmap(lambda row: model.activation(model.layers[1](row)))(h)
        return jax.vmap(model.layers[2])(h), jnp.sum(model.layers[2].weight ** 2)


# A gradient inside the function, which training differentiates; a custom_vjp; a loop.
@jax.custom_vjp
def bent(x):
    return jnp.sin(x)


bent.defvjp(lambda x: (jnp.sin(x), x), lambda x, dy: (dy * jnp.cos(x),))


@jax.checkpoint
def energy(params, x):
    with place_guard(FIRST):
        h = bent(x @ params["up"])
    with place_guard(SECOND):
        h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h), None), h, length=2)
        return jax.nn.relu(h + 0.3) @ params["down"][0].T + params["down"][1]


def inner(params, x):
    y, slope = jax.value_and_grad(lambda x: energy(params, x).sum(), argnums=0)(x)
    return energy(params, x).sum(-1), (slope**2).mean() + 0.01 * y


# Complex numbers: a state-space layer of S4's kind, whose complex step and state depend
# on real parameters, and a filter in the frequency domain. A complex value goes from one
# place to the other. The last matrix is an orthogonal one of a parameter.
def spectral(params, x):
    with place_guard(FIRST):
        pole = jnp.exp(-jnp.exp(params["decay"]) + 1j * params["angle"])
        scale = params["out"][0] + 1j * params["out"][1]

        def step(h, now):
            h = h * pole + now[:, None]
            return h, h @ scale

        start = jnp.zeros((len(x), 3), pole.dtype)
        last, h = jax.lax.scan(step, start, x.T)
        h = h.T
    with place_guard(SECOND):
        y = jnp.fft.irfft(jnp.fft.rfft(h.real) * params["filter"], n=4)
        y = jnp.tanh(y @ jnp.linalg.qr(params["square"])[0])
        return y.sum(-1) + jnp.abs(last @ (pole * scale)), jnp.sum(params["angle"] ** 2)


def spectral_model():
    keys = iter(jax.random.split(jax.random.key(3), 5))
    return {
        "decay": jax.random.normal(next(keys), 3) / 2,
        "angle": jax.random.normal(next(keys), 3),
        "out": jax.random.normal(next(keys), (2, 3)),
        "filter": jax.random.normal(next(keys), 3),
        "square": jax.random.normal(next(keys), (4, 4)),
    }


MODELS = {
    "spectral": (spectral, spectral_model),
    "plain": (plain, plain_model),
    "flax": (flax, flax_model),
    "equinox": (equinox_, equinox_model),
    "inner": (inner, plain_model),
}


def build(which):
    fn, model = MODELS[which]
    program = Program(
        name="traced",
        precision="float64",
        data={"train": {"source": "npz:rows.npz", "batch": 8}},
        epochs=2,
        metrics=["loss", "error"],
        **SECTIONS,
    )
    with program:
        x = layers.data("x", "float32[batch, 4]")
        y = layers.data("y", "float32[batch]")
        with place_guard(AROUND):
            is_called = model in (plain_model, spectral_model)
            argument = model() if is_called else model
            result, penalty = placer.trace(fn, argument, x, name="net", batch=BATCH)
            error = layers.mean_squared_error(result, y, name="error")
            loss = layers.add(error, 0.1 * penalty, name="loss")
        with place_guard(OPTIMIZER):
            optimizer.SGD(0.05).minimize(loss)
    return program


def build_spectral():
    return build("spectral")


def build_plain():
    return build("plain")


def build_flax():
    return build("flax")


def build_equinox():
    return build("equinox")


def build_inner():
    return build("inner")
