"""call: a user's function, with the signature of an op's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from placer.ops.functions.cut import PART_NUMBER, STEP_KEY, ValueSource
from placer.ops.functions.function import trace_function
from placer.ops.functions.mode import Mode
from placer.ops.functions.replica_regions import Parts, parts_of
from placer.ops.functions.run_region import run_region

from .random_jax import jax_keys, step_key_of


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
    parts: int = 0,
    axis: str = "",
    count: int | None = None,
) -> Any:
    last = len(inputs) - 1
    if args:
        mode = Mode(training, batch == "rows", parts, axis)
        position = inputs[last]
        own = Parts(1, len(position), ())
        if parts:
            own = parts_of(position, parts, count, _name(fn))
        return _call_region(
            inputs[:last], position, fn, args, region, same, mode, stream, own
        )
    first_state = last - len(state)
    first_param = first_state - len(params)
    values = dict(zip(params, inputs[first_param:first_state], strict=True))
    states = dict(zip(state, inputs[first_state:last], strict=True))
    if batch == "rows" and not len(inputs[last]):
        return _empty_results(fn, values, inputs[:first_param], training)
    keys = jax_keys(inputs[last], stream)
    returned = fn(
        values,
        states,
        *inputs[:first_param],
        rng=keys if batch == "rows" else keys[0],
        training=training,
    )
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"{_name(fn)} must return a pair: its outputs and its state")
    outs, new = returned
    if not isinstance(new, dict) or new.keys() != states.keys():
        expected = ", ".join(states) or "nothing"
        raise TypeError(f"{_name(fn)} must return a state of {expected}")
    outs = outs if isinstance(outs, tuple | list) else (outs,)
    results = (*map(jnp.asarray, outs), *(jnp.asarray(new[name]) for name in state))
    return results if len(results) > 1 else results[0]


def _call_region(
    inputs: Sequence[jax.Array],
    position: jax.Array,
    fn: Callable[..., Any],
    args: str,
    region: int,
    same: str,
    mode: Mode,
    stream: int,
    own: Parts,
) -> Any:
    """Return the results of one region; without rows, types come from a one-row trace."""

    def random(source: ValueSource) -> jax.Array:
        if source == PART_NUMBER:
            return jnp.asarray(own.numbers)
        if source != STEP_KEY:
            return position[:, 1]
        key = step_key_of(stream, position[0, 0])
        if not mode.parts:
            return key
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, own.numbers)

    if len(position):
        results = run_region(
            fn, args, region, own.rows, inputs, same, mode, random, own.count
        )
    else:
        outs = trace_function(fn, args, 1, mode).cut.regions[region].closed.out_avals
        results = [jnp.zeros((0, *out.shape[1:]), out.dtype) for out in outs]
    return tuple(results) if len(results) > 1 else results[0]


def _empty_results(
    fn: Callable[..., Any],
    values: dict[str, jax.Array],
    inputs: Sequence[jax.Array],
    training: bool,
) -> Any:
    """Return empty results, with the types of the results for one row."""

    # The parameters are not arguments, because eval_shape would sort their dict.
    def call_with_one_row(*rows: jax.Array) -> Any:
        keys = jax_keys(jnp.zeros((1, 2), jnp.uint32), 0)
        outs, _ = fn(values, {}, *rows, rng=keys, training=training)
        return outs if isinstance(outs, tuple | list) else (outs,)

    rows = [
        jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) if x.shape[:1] == (0,) else x
        for x in inputs
    ]
    results = tuple(
        jnp.zeros((0, *out.shape[1:]), out.dtype)
        for out in jax.eval_shape(call_with_one_row, *rows)
    )
    return results if len(results) > 1 else results[0]


def _name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '')}:{getattr(fn, '__name__', fn)}"
