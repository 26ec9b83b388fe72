"""simple_rnn, gru and lstm: a scan over the steps, forward and backward.

Products that do not depend on a state are computed for all steps at once: the input's
product before the forward scan, and the gradients of weights and input after the
backward scan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from ..common.gradient_jax import differentiable
from ..common.roles_jax import name_operands
from .cells_jax import Cell, Gru, Lstm, SimpleRnn, State

Inputs = Mapping[str, jax.Array]
Saved = Mapping[str, jax.Array | None]

_STATES = ("state", "cell")
_WEIGHTS = ("w_input", "w_recurrent")
_BIASES = ("b", "b_recurrent")


def simple_rnn(
    *operands: jax.Array, activation: str = "tanh", reverse: bool = False
) -> State:
    return _layer(SimpleRnn(activation), reverse, operands)


def gru(*operands: jax.Array, reverse: bool = False) -> State:
    return _layer(Gru(), reverse, operands)


def lstm(
    *operands: jax.Array, forget_bias: float = 1.0, reverse: bool = False
) -> State:
    return _layer(Lstm(forget_bias), reverse, operands)


def _layer(cell: Cell, reverse: bool, operands: Sequence[jax.Array]) -> State:
    leading, biased = ("x", *_STATES[: cell.state_count]), (*_WEIGHTS, *cell.biases)
    named = name_operands(
        operands, leading, (1, len(leading)), "lengths", _WEIGHTS, biased
    )
    return _run(cell, reverse, named)


def _run_alone(cell: Cell, reverse: bool, inputs: Inputs) -> State:
    last, states, _ = _forward(cell, reverse, inputs, keep=False)
    return states[0], *last


def _run_forward(
    cell: Cell, reverse: bool, inputs: Inputs
) -> tuple[State, tuple[Saved, State, State]]:
    last, states, kept = _forward(cell, reverse, inputs, keep=True)
    saved = {name: None if name in _BIASES else a for name, a in inputs.items()}
    return (states[0], *last), (saved, states, kept)


def _forward(
    cell: Cell, reverse: bool, inputs: Inputs, *, keep: bool
) -> tuple[State, State, State]:
    """Return the last state, the states after each step, and the saved values."""
    z = _steps_first(inputs["x"]) @ inputs["w_input"]
    z = z + inputs["b"] if "b" in inputs else z
    w = inputs["w_recurrent"]
    gates = tuple(jnp.split(z, w.shape[1] // w.shape[0], axis=-1))

    def step(
        old: State, now: tuple[State, jax.Array | None]
    ) -> tuple[State, tuple[State, State]]:
        z, active = now
        new, kept = cell.step(z, old, w, inputs.get("b_recurrent"))
        new = _where(active, new, old)
        return new, (new, kept) if keep else (new[:1], ())

    last, (states, kept) = jax.lax.scan(
        step, _initial(cell, inputs), (gates, _active_rows(inputs)), reverse=reverse
    )
    return last, *jax.tree.map(_steps_first, (states, kept))


def _run_backward(
    cell: Cell, reverse: bool, residuals: tuple[Saved, State, State], slopes: State
) -> tuple[Saved]:
    saved, *rest = residuals
    inputs = {name: a for name, a in saved.items() if a is not None}
    states, kept = jax.tree.map(_steps_first, rest)
    before = _previous_states(states, _initial(cell, inputs), reverse)
    w = inputs["w_recurrent"]

    def step(
        slopes: State, now: tuple[jax.Array, State, State, State, jax.Array | None]
    ) -> tuple[State, jax.Array]:
        dh, kept, new, old, active = now
        slopes = (slopes[0] + dh, *slopes[1:])
        dz, d_state = cell.backward(slopes, kept, new, old)
        # d_old also has the path through h · w_recurrent; ended rows keep their slopes
        recurrent = jax.lax.dot_general(
            cell.recurrent_cotangent(dz, kept), w, (((1,), (1,)), ((), ()))
        )
        d_old = (d_state[0] + recurrent, *d_state[1:])
        (dz,) = _where(active, (dz,), (jnp.zeros_like(dz),))
        return _where(active, d_old, slopes), dz

    d_initial, dz = jax.lax.scan(
        step,
        slopes[1:],
        (_steps_first(slopes[0]), kept, states, before, _active_rows(inputs)),
        reverse=not reverse,
    )
    # For all steps at once, with z = x · w_input + b and u = h · w_recurrent:
    # dx = dz · w_inputᵀ, dw_input = Σ xᵀ · dz, dw_recurrent = Σ hᵀ · du
    du = cell.recurrent_cotangent(dz, kept)
    cotangents = {
        "x": jnp.einsum("tbg,ig->bti", dz, inputs["w_input"]),
        "w_input": jnp.einsum("bti,tbg->ig", inputs["x"], dz),
        "w_recurrent": jnp.einsum("tbh,tbg->hg", before[0], du),
        "b": jnp.sum(dz, axis=(0, 1)),
        "b_recurrent": jnp.sum(du[..., -len(w) :], axis=(0, 1)),
        **dict(zip(_STATES, d_initial, strict=False)),
    }
    return ({name: cotangents.get(name) for name in saved},)


_run = differentiable(_run_forward, _run_backward, 2, _run_alone)


def _initial(cell: Cell, inputs: Inputs) -> State:
    x, size = inputs["x"], len(inputs["w_recurrent"])
    zeros = jnp.zeros((x.shape[0], size), x.dtype)
    return tuple(inputs.get(name, zeros) for name in _STATES[: cell.state_count])


def _active_rows(inputs: Inputs) -> jax.Array | None:
    """Return a mask [time, rows, 1] of rows that have not ended; None means all rows."""
    if "lengths" not in inputs:
        return None
    steps = jnp.arange(inputs["x"].shape[1])
    return (steps[:, None] < inputs["lengths"])[..., None]


def _previous_states(states: State, initial: State, reverse: bool) -> State:
    """Return the states before each step, given the states after each step."""
    return tuple(
        jnp.concatenate([s[1:], first[None]] if reverse else [first[None], s[:-1]])
        for s, first in zip(states, initial, strict=True)
    )


def _where(active: jax.Array | None, new: State, old: State) -> State:
    if active is None:
        return new
    return tuple(jnp.where(active, n, o) for n, o in zip(new, old, strict=True))


def _steps_first(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, 0, 1)
