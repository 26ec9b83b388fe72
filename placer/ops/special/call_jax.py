"""call: a function of the user's, in the form of an op's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from placer.ops.common.threefry_jax import threefry2x32
from placer.regions.function import run, traced


def call(
    *inputs: jax.Array,
    fn: Callable[..., Any],
    params: Sequence[str] = (),
    state: Sequence[str] = (),
    stream: int = 0,
    training: bool = False,
    batch: str = "whole",
    saves: Sequence[int] = (),
    args: str = "",
    region: int = 0,
    same: str = "",
) -> Any:
    count = len(inputs) - 1
    if args:
        return _region(inputs[:count], fn, args, region, len(inputs[count]), same)
    first_state = count - len(state)
    first_param = first_state - len(params)
    values = dict(zip(params, inputs[first_param:first_state], strict=True))
    states = dict(zip(state, inputs[first_state:count], strict=True))
    if batch == "rows" and not len(inputs[count]):
        return _of_no_rows(fn, values, inputs[:first_param], training)
    keys = _keys(inputs[count], stream)
    given = fn(
        values,
        states,
        *inputs[:first_param],
        rng=keys if batch == "rows" else keys[0],
        training=training,
    )
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"{_name(fn)} must give its outputs and its state, two things")
    outs, new = given
    if not isinstance(new, dict) or new.keys() != states.keys():
        wanted = ", ".join(states) or "nothing"
        raise TypeError(f"{_name(fn)} must give a state of {wanted}")
    outs = outs if isinstance(outs, tuple | list) else (outs,)
    found = (*map(jnp.asarray, outs), *(jnp.asarray(new[name]) for name in state))
    return found if len(found) > 1 else found[0]


def _region(
    inputs: Sequence[jax.Array],
    fn: Callable[..., Any],
    args: str,
    region: int,
    rows: int,
    same: str,
) -> Any:
    """What a region of a traced function gives; of no rows, which few functions can be
    traced with, what its types are for one."""
    if rows:
        found = run(fn, args, region, rows, inputs, same)
    else:
        outs = traced(fn, args, 1).cut.regions[region].closed.out_avals
        found = [jnp.zeros((0, *out.shape[1:]), out.dtype) for out in outs]
    return tuple(found) if len(found) > 1 else found[0]


def _of_no_rows(
    fn: Callable[..., Any],
    values: dict[str, jax.Array],
    inputs: Sequence[jax.Array],
    training: bool,
) -> Any:
    """What the function would give of a batch without rows, which few can take: it is
    asked, by its types alone, what it gives of one."""

    def of_one(values: dict[str, jax.Array], *rows: jax.Array) -> Any:
        keys = _keys(jnp.zeros((1, 2), jnp.uint32), 0)
        outs, _ = fn(values, {}, *rows, rng=keys, training=training)
        return outs if isinstance(outs, tuple | list) else (outs,)

    struct: Any = jax.ShapeDtypeStruct  # which has no types
    rows = [
        struct((1, *x.shape[1:]), x.dtype) if x.shape[:1] == (0,) else x for x in inputs
    ]
    found = tuple(
        jnp.zeros((0, *out.shape[1:]), out.dtype)
        for out in jax.eval_shape(of_one, values, *rows)
    )
    return found if len(found) > 1 else found[0]


def _keys(position: jax.Array, stream: int) -> jax.Array:
    """A JAX key for each row, from the stream, the step and the row."""
    word = jnp.uint32(stream & 0xFFFFFFFF), jnp.uint32(stream >> 32)
    first, second = threefry2x32(word, (position[:, 0], position[:, 1]))
    bits = jnp.stack([first, second], axis=-1)
    keys: jax.Array = jax.random.wrap_key_data(bits, impl="threefry2x32")
    return keys


def _name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '')}:{getattr(fn, '__name__', fn)}"
