"""The models of `tests/support/normalizing.py` as their libraries and plain JAX train them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import placer
from placer.ops.functions.paths import leaves_with_paths
from placer.runtime.control.options import Options
from support.histories import read_losses
from support.imported_files import load_program

BATCH = 8
RNG = np.random.default_rng(5)
ROWS = {"x": RNG.normal(size=(24, 4)), "y": RNG.normal(size=24)}

Expected = tuple[list[float], dict[str, Any], float]
"""The losses, the final values by name, and the loss of an evaluation."""


def widened(tree: Any) -> Any:
    """Return a pytree with its floats as float64."""

    def wide(leaf: Any) -> Any:
        return leaf.astype(np.float64) if equinox.is_inexact_array(leaf) else leaf

    return jax.tree.map(wide, tree)


def train(
    loss: Callable[..., Any], params: Any, stats: Any, steps: int
) -> tuple[list[float], Any, Any]:
    """Return the losses, and the final parameters and statistics.

    `loss` returns the loss and the new statistics for parameters, statistics, the key of
    the step, x and y.
    """
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    seed, losses = load_program("normalizing").SEED, []
    for number in range(1, steps + 1):
        part = slice((number - 1) % 3 * BATCH, (number - 1) % 3 * BATCH + BATCH)
        key = placer.step_key(seed, "net", number)
        rows = ROWS["x"][part], ROWS["y"][part]
        (error, stats), grads = step(params, stats, key, *rows)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        losses.append(float(error))
    return losses, params, stats


def over_parts(part: Callable[..., Any], parts: int, key: Any, *rows: Any) -> Any:
    """Return the results of a function of one part for all parts: the definition."""
    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(parts))
    cut = [x.reshape(parts, -1, *x.shape[1:]) for x in rows]
    return jax.vmap(part, axis_name="batch")(keys, *cut)


def _squared_error(
    apply: Callable[..., Any], parts: int, key: Any, x: Any, y: Any
) -> Any:
    """Return the loss and the new statistics of a function of a key and rows."""
    if not parts:
        result, stats = apply(key, x)
    else:
        result, stats = over_parts(apply, parts, key, x)
        # All parts begin the next step with the statistics of part 0.
        result, stats = result.reshape(-1), jax.tree.map(lambda x: x[0], stats)
    return ((result - y) ** 2).mean(), stats


@cache
def plain_nnx(steps: int, parts: int = 0) -> Expected:
    """Train by Flax nnx; if `parts` is not 0, by `jax.vmap` over that many parts."""
    module = load_program("normalizing")
    apply = module.apply_parts if parts else module.apply
    made = module.parted() if parts else module.normalizing(hidden=6)
    graph, params, stats, rngs = nnx.split(made, nnx.Param, nnx.BatchStat, ...)

    def loss(params: Any, stats: Any, *given: Any) -> Any:
        def of_rows(key: Any, x: Any) -> Any:
            model = nnx.merge(graph, params, stats, rngs, copy=True)
            model.drop.rngs = nnx.Rngs(jax.random.fold_in(key, 0)).default
            return apply(model, x), nnx.state(model, nnx.BatchStat)

        return _squared_error(of_rows, parts, *given)

    losses, params, stats = train(loss, widened(params), widened(stats), steps)
    model = nnx.merge(graph, params, stats, rngs, copy=True)
    values = {
        "net." + "_".join(path): np.asarray(leaf)
        for path, leaf in leaves_with_paths(model)
        if "rngs" not in path
    }
    model.eval()
    error = apply(model, ROWS["x"]) - ROWS["y"]
    return losses, values, float((error**2).mean())


@cache
def plain_linen(steps: int, parts: int = 0) -> Expected:
    """Train by Flax linen; if `parts` is not 0, by `jax.vmap` over that many parts."""
    module = load_program("normalizing")
    apply = module.apply_linen_parts if parts else module.apply_linen

    def loss(params: Any, stats: Any, *given: Any) -> Any:
        def of_rows(key: Any, x: Any) -> Any:
            return apply(params, stats, x, key, True)

        return _squared_error(of_rows, parts, *given)

    start = widened((module.params(), module.statistics()))
    losses, params, stats = train(loss, *start, steps)
    result, _ = apply(params, stats, ROWS["x"], jax.random.key(0), False)
    error = float(((result - ROWS["y"]) ** 2).mean())
    return losses, named({"params": params, "stats": stats}), error


def named(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays in the arguments of a trace under their names in files."""
    return {
        f"net.{name}_" + "_".join(path): np.asarray(leaf)
        for name, tree in arguments.items()
        for path, leaf in leaves_with_paths(tree)
    }


def options(folder: Path, steps: int, **more: Any) -> Options:
    """Return the options of a run whose files `check` reads."""
    return Options(
        steps=steps,
        deadline=300.0,
        history=folder / "history.jsonl",
        save_params=folder / "saved.safetensors",
        **more,
    )


def check(
    expected: Expected, folder: Path, outcome: Any, first: int = 0, rtol: float = 1e-12
) -> None:
    """Check the losses after the step `first`, the final values and the evaluation."""
    losses, values, evaluation = expected
    got = read_losses(folder / "history.jsonl")
    assert got[-len(losses[first:]) :] == pytest.approx(losses[first:], rel=rtol)
    trained = load_file(folder / "saved.safetensors")
    assert trained.keys() == values.keys()
    for name, value in values.items():
        assert trained[name].dtype == value.dtype
        np.testing.assert_allclose(trained[name], value, rtol=rtol, atol=rtol)
    assert outcome.eval == {"loss": pytest.approx(evaluation, rel=rtol)}
