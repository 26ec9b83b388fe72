"""simple_rnn, gru, lstm: one scan forward and one back.

All that does not wait for a state is one product over all steps: the input's before the
forward scan, and those of the gradients of weights and input after the backward one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from placer.ops.sequence.cells_jax import Cell, Gru, Lstm, SimpleRnn, State
from placer.ops.sequence.recurrent import roles
from placer.types import TensorType

Given = Mapping[str, jax.Array]
Saved = tuple[jax.Array | None, ...]

_STATES = ("state", "cell")
_BIASES = ("b", "b_recurrent")


def simple_rnn(
    *operands: jax.Array, activation: str = "tanh", reverse: bool = False
) -> State:
    return _layer("simple_rnn", SimpleRnn(activation), reverse, operands)


def gru(*operands: jax.Array, reverse: bool = False) -> State:
    return _layer("gru", Gru(), reverse, operands)


def lstm(
    *operands: jax.Array, forget_bias: float = 1.0, reverse: bool = False
) -> State:
    return _layer("lstm", Lstm(forget_bias), reverse, operands)


def _layer(
    kind: str, cell: Cell, reverse: bool, operands: Sequence[jax.Array]
) -> State:
    names = roles(kind, [TensorType(str(a.dtype), a.shape) for a in operands])
    return _run(cell, reverse, names, *operands)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _run(
    cell: Cell, reverse: bool, names: tuple[str, ...], *operands: jax.Array
) -> State:
    given = dict(zip(names, operands, strict=True))
    last, states, _ = _forward(cell, reverse, given, keep=False)
    return states[0], *last


def _run_forward(
    cell: Cell, reverse: bool, names: tuple[str, ...], *operands: jax.Array
) -> tuple[State, tuple[Saved, State, State]]:
    given = dict(zip(names, operands, strict=True))
    last, states, kept = _forward(cell, reverse, given, keep=True)
    saved = tuple(None if name in _BIASES else given[name] for name in names)
    return (states[0], *last), (saved, states, kept)


def _forward(
    cell: Cell, reverse: bool, given: Given, *, keep: bool
) -> tuple[State, State, State]:
    """The state after the last step; after each step, [rows, time, size], that state,
    only h of it unless `keep`, and what the cell keeps."""
    z = _steps_first(given["x"]) @ given["w_input"]
    z = z + given["b"] if "b" in given else z
    w = given["w_recurrent"]
    of_gates = tuple(jnp.split(z, w.shape[1] // w.shape[0], axis=-1))

    def step(
        old: State, now: tuple[State, jax.Array | None]
    ) -> tuple[State, tuple[State, State]]:
        z, going = now
        new, kept = cell.step(z, old, w, given.get("b_recurrent"))
        new = _where(going, new, old)
        return new, (new, kept) if keep else (new[:1], ())

    last, (states, kept) = jax.lax.scan(
        step, _initial(cell, given), (of_gates, _going(given)), reverse=reverse
    )
    return last, *jax.tree.map(_steps_first, (states, kept))


def _run_backward(
    cell: Cell,
    reverse: bool,
    names: tuple[str, ...],
    residuals: tuple[Saved, State, State],
    slopes: State,
) -> Saved:
    saved, *rest = residuals
    given = {n: a for n, a in zip(names, saved, strict=True) if a is not None}
    states, kept = jax.tree.map(_steps_first, rest)
    before = _before(states, _initial(cell, given), reverse)
    w = given["w_recurrent"]

    def step(
        slopes: State, now: tuple[jax.Array, State, State, State, jax.Array | None]
    ) -> tuple[State, jax.Array]:
        dh, kept, new, old, going = now
        slopes = (slopes[0] + dh, *slopes[1:])
        dz, direct = cell.back(slopes, kept, new, old)
        through = jax.lax.dot_general(
            cell.recurrent(dz, kept), w, (((1,), (1,)), ((), ()))
        )
        d_old = (direct[0] + through, *direct[1:])
        (dz,) = _where(going, (dz,), (jnp.zeros_like(dz),))
        return _where(going, d_old, slopes), dz

    d_initial, dz = jax.lax.scan(
        step,
        slopes[1:],
        (_steps_first(slopes[0]), kept, states, before, _going(given)),
        reverse=not reverse,
    )
    du = cell.recurrent(dz, kept)
    found = {
        "x": jnp.einsum("tbg,ig->bti", dz, given["w_input"]),
        "w_input": jnp.einsum("bti,tbg->ig", given["x"], dz),
        "w_recurrent": jnp.einsum("tbh,tbg->hg", before[0], du),
        "b": jnp.sum(dz, axis=(0, 1)),
        "b_recurrent": jnp.sum(du[..., -len(w) :], axis=(0, 1)),
        **dict(zip(_STATES, d_initial, strict=False)),
    }
    return tuple(found.get(name) for name in names)


_run.defvjp(_run_forward, _run_backward)


def _initial(cell: Cell, given: Given) -> State:
    """The state before the first step: zeros where it is not given."""
    x, size = given["x"], len(given["w_recurrent"])
    zeros = jnp.zeros((len(x), size), x.dtype)
    return tuple(given.get(name, zeros) for name in _STATES[: cell.states])


def _going(given: Given) -> jax.Array | None:
    """Which rows are not at their end, [time, rows, 1]; None where all go on."""
    if "lengths" not in given:
        return None
    steps = jnp.arange(given["x"].shape[1])
    return (steps[:, None] < given["lengths"])[..., None]


def _before(states: State, initial: State, reverse: bool) -> State:
    """The state before each step, of those after each."""
    return tuple(
        jnp.concatenate([s[1:], first[None]] if reverse else [first[None], s[:-1]])
        for s, first in zip(states, initial, strict=True)
    )


def _where(going: jax.Array | None, new: State, old: State) -> State:
    if going is None:
        return new
    return tuple(jnp.where(going, n, o) for n, o in zip(new, old, strict=True))


def _steps_first(x: jax.Array) -> jax.Array:
    """[rows, time, …] as [time, rows, …], and back."""
    return jnp.swapaxes(x, 0, 1)
