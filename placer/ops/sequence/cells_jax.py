"""The cells of recurrent layers: one step forward, and one step back.

A state is a tuple of [rows, size] whose first is the hidden state h. A gate adds up its
part of `x · w_input + b`, which is made for all steps at once and called z here, and its
part of `h · w_recurrent`. All is elementwise but for that product.

What belongs to different gates is kept apart, not side by side in one array: XLA's loops
on a CPU then take up to two fifths less time forward and a tenth less backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp

State = tuple[jax.Array, ...]
sigmoid = jax.lax.logistic


class Cell(Protocol):
    """A kind of recurrent layer with its attributes; equal ones trace alike."""

    states: ClassVar[int]
    """How many arrays its state has."""

    def step(
        self, z: State, state: State, w: jax.Array, b: jax.Array | None
    ) -> tuple[State, State]:
        """The next state, and what `back` needs of this step beside the states.

        `w` is w_recurrent, `b` a bias that is not added to z, where the cell has one.
        """

    def back(
        self, slopes: State, kept: State, new: State, old: State
    ) -> tuple[jax.Array, State]:
        """The cotangent of z, and that of the old state but for h · w_recurrent."""

    def recurrent(self, dz: jax.Array, kept: State) -> jax.Array:
        """The cotangent of h · w_recurrent, given that of z, for any number of steps."""


@dataclass(frozen=True, slots=True)
class SimpleRnn:
    states: ClassVar[int] = 1
    activation: str

    def step(
        self, z: State, state: State, w: jax.Array, b: jax.Array | None
    ) -> tuple[State, State]:
        h = z[0] + state[0] @ w
        return (jnp.maximum(h, 0) if self.activation == "relu" else jnp.tanh(h),), ()

    def back(
        self, slopes: State, kept: State, new: State, old: State
    ) -> tuple[jax.Array, State]:
        (dh,), (h,) = slopes, new
        relu = self.activation == "relu"
        dz = jnp.where(h > 0, dh, 0) if relu else dh * (1 - h) * (1 + h)
        return dz, (jnp.zeros_like(dh),)

    def recurrent(self, dz: jax.Array, kept: State) -> jax.Array:
        return dz


@dataclass(frozen=True, slots=True)
class Gru:
    states: ClassVar[int] = 1

    def step(
        self, z: State, state: State, w: jax.Array, b: jax.Array | None
    ) -> tuple[State, State]:
        (h,), (z_reset, z_update, z_new) = state, z
        to_reset, to_update, past = jnp.split(h @ w, 3, axis=-1)
        past = past if b is None else past + b
        reset, update = sigmoid(z_reset + to_reset), sigmoid(z_update + to_update)
        new = jnp.tanh(z_new + reset * past)
        return (new + update * (h - new),), (reset, update, new, past)

    def back(
        self, slopes: State, kept: State, new: State, old: State
    ) -> tuple[jax.Array, State]:
        (dh,), (h,), (reset, update, candidate, past) = slopes, old, kept
        d_new = dh * (1 - update) * (1 - candidate) * (1 + candidate)
        d_update = dh * (h - candidate) * update * (1 - update)
        d_reset = d_new * past * reset * (1 - reset)
        dz = jnp.concatenate([d_reset, d_update, d_new], axis=-1)
        return dz, (dh * update,)

    def recurrent(self, dz: jax.Array, kept: State) -> jax.Array:
        reset, *_ = kept
        d_reset, d_update, d_new = jnp.split(dz, 3, axis=-1)
        return jnp.concatenate([d_reset, d_update, d_new * reset], axis=-1)


@dataclass(frozen=True, slots=True)
class Lstm:
    states: ClassVar[int] = 2
    forget_bias: float

    def step(
        self, z: State, state: State, w: jax.Array, b: jax.Array | None
    ) -> tuple[State, State]:
        h, c = state
        added = zip(z, jnp.split(h @ w, 4, axis=-1), strict=True)
        z_enter, z_forget, z_new, z_out = (of_x + of_h for of_x, of_h in added)
        enter, forget = sigmoid(z_enter), sigmoid(z_forget + self.forget_bias)
        new, out = jnp.tanh(z_new), sigmoid(z_out)
        c = forget * c + enter * new
        return (out * jnp.tanh(c), c), (enter, forget, new, out)

    def back(
        self, slopes: State, kept: State, new: State, old: State
    ) -> tuple[jax.Array, State]:
        (dh, dc), (_, c), (_, c_old) = slopes, new, old
        enter, forget, candidate, out = kept
        shown = jnp.tanh(c)
        dc = dc + dh * out * (1 - shown) * (1 + shown)
        gates = (
            dc * candidate * enter * (1 - enter),
            dc * c_old * forget * (1 - forget),
            dc * enter * (1 - candidate) * (1 + candidate),
            dh * shown * out * (1 - out),
        )
        return jnp.concatenate(gates, axis=-1), (jnp.zeros_like(dh), dc * forget)

    def recurrent(self, dz: jax.Array, kept: State) -> jax.Array:
        return dz
