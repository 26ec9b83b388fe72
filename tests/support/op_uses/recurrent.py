"""simple_rnn, gru and lstm. The plain formulas are loops over the steps in Python."""

import jax.numpy as jnp

from support.op_use import Use

X, H, LENGTHS = "float32[batch, 4, 3]", "float32[batch, 2]", "int32[batch]"
WEIGHTS = {
    "simple_rnn": ("float32[3, 2]", "float32[2, 2]", "float32[2]"),
    "gru": ("float32[3, 6]", "float32[2, 6]", "float32[6]", "float32[2]"),
    "lstm": ("float32[3, 8]", "float32[2, 8]", "float32[8]"),
}
STATES = {"simple_rnn": (H,), "gru": (H,), "lstm": (H, H)}


def _uses(kind: str) -> list[Use]:
    weights, states = WEIGHTS[kind], STATES[kind]
    alone = tuple(text.replace("batch", "5") for text in (X, *states))
    return [
        Use(kind, (X, *weights)),
        Use(kind, (X, *weights[:2])),
        Use(kind, (X, *states, *weights), {"reverse": True}),
        Use(kind, (X, LENGTHS, *weights), domain={1: (0, 6)}),
        Use(
            kind,
            (X, *states, LENGTHS, *weights),
            {"reverse": True},
            domain={1 + len(states): (0, 6)},
        ),
        Use(kind, (*alone, *weights[:2])),
    ]


def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def split_operands(operands, states: int):
    """Return x, the initial states, lengths or None, and the weights."""
    x, *rest = operands
    before = [a for a in rest if a.ndim == 2 and len(a) == len(x)][:states]
    rest = rest[len(before) :]
    lengths = None
    if jnp.issubdtype(rest[0].dtype, jnp.integer):
        lengths, *rest = rest
    size = rest[1].shape[0]
    return x, before or [jnp.zeros((len(x), size), x.dtype)] * states, lengths, rest


def run_steps(operands, states, reverse, step):
    x, state, lengths, weights = split_operands(operands, states)
    states_by_step = {}
    times = range(x.shape[1])
    for t in reversed(times) if reverse else times:
        new = step(x[:, t], state, *weights)
        if lengths is not None:
            active = (t < lengths)[:, None]
            new = [jnp.where(active, n, o) for n, o in zip(new, state, strict=True)]
        state = states_by_step[t] = new
    return jnp.stack([states_by_step[t][0] for t in times], axis=1), *state


def plain_simple_rnn(*operands, activation="tanh", reverse=False):
    def step(x, state, w, u, b=0.0):
        z = x @ w + state[0] @ u + b
        return [jnp.tanh(z) if activation == "tanh" else jnp.where(z > 0, z, 0.0)]

    return run_steps(operands, 1, reverse, step)


def plain_gru(*operands, reverse=False):
    def step(x, state, w, u, b=0.0, b_recurrent=0.0):
        (h,) = state
        n = h.shape[1]
        z, a = x @ w + b, h @ u
        r = sigmoid(z[:, :n] + a[:, :n])
        update = sigmoid(z[:, n : 2 * n] + a[:, n : 2 * n])
        new = jnp.tanh(z[:, 2 * n :] + r * (a[:, 2 * n :] + b_recurrent))
        return [(1 - update) * new + update * h]

    return run_steps(operands, 1, reverse, step)


def plain_lstm(*operands, forget_bias=1.0, reverse=False):
    def step(x, state, w, u, b=0.0):
        h, c = state
        n = h.shape[1]
        z = x @ w + h @ u + b
        i, f, g, o = (z[:, k * n : (k + 1) * n] for k in range(4))
        c = sigmoid(f + forget_bias) * c + sigmoid(i) * jnp.tanh(g)
        return [sigmoid(o) * jnp.tanh(c), c]

    return run_steps(operands, 2, reverse, step)


DIFFERENTIABLE = [
    *_uses("simple_rnn"),
    Use("simple_rnn", (X, *WEIGHTS["simple_rnn"]), {"activation": "relu"}),
    *_uses("gru"),
    *_uses("lstm"),
    Use("lstm", (X, *WEIGHTS["lstm"]), {"forget_bias": 0.0}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "simple_rnn": plain_simple_rnn,
    "gru": plain_gru,
    "lstm": plain_lstm,
}
