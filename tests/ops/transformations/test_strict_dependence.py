"""An update that mixes the elements of a parameter never runs on blocks: this would be a
silent error."""

from __future__ import annotations

import functools
from collections import deque
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.ops.transformations.cut import differences_on_blocks
from placer.ops.transformations.describe import describe
from placer.ops.transformations.functions import block_functions
from placer.place.types import TensorType
from placer.plan.settings.training.slicing import make_blocks

SHAPE, ROWS, FLAT = (6, 6), (2, 6), (7,)
TYPES = {"w": TensorType("float64", SHAPE), "v": TensorType("float64", (4,))}
KEY = jax.random.key(3)
jit = jax.jit  # before a fixture replaces it by one that cannot be nested


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


def scanned_sum(x):
    last, _ = jax.lax.scan(lambda total, row: (total + row, None), 0 * x[0], x)
    return x + last


def counted_down(x):
    """Divide by 2 while any element is large."""
    return jax.lax.while_loop(lambda y: jnp.any(jnp.abs(y) > 1e-3), lambda y: y / 2, x)


MIXED = {
    "sum": lambda x: x - x.sum(),
    "sum of rows": lambda x: x + x.sum(0),
    "mean": lambda x: x * x.mean(),
    "mean of columns": lambda x: x - x.mean(-1, keepdims=True),
    "norm": lambda x: x / (1 + jnp.linalg.norm(x)),
    "max": lambda x: x - x.max(),
    "any": lambda x: jnp.where(jnp.any(x > 1.0), 0.0, x),
    "argmax": lambda x: x + jnp.argmax(x),
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "transposed": lambda x: x + x.T,
    "product": lambda x: x @ x,
    "one number of all": lambda x: x + jnp.einsum("ij,ij->", x, x),
    "iota": lambda x: x * jnp.arange(x.shape[0])[:, None],
    "iota of columns": lambda x: x * jnp.arange(6.0),
    "table": lambda x: x * jnp.asarray(np.arange(36.0).reshape(6, 6)),
    "eye": lambda x: x + jnp.eye(*x.shape),
    "random bits": lambda x: x + jax.random.normal(KEY, x.shape),
    "random rows": lambda x: x + jax.random.normal(KEY, (6,)),
    "dropout": lambda x: jnp.where(jax.random.bernoulli(KEY, 0.5, x.shape), x, 0.0),
    "vmapped keys": lambda x: x + jax.vmap(
        lambda key: jax.random.normal(key, x.shape[1:])
    )(jax.random.split(KEY, x.shape[0])),
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "cummax": lambda x: jax.lax.cummax(x, 1),
    "associative scan": lambda x: jax.lax.associative_scan(jnp.add, x),
    "sort": lambda x: jnp.sort(x, 0),
    "sort of columns": lambda x: jnp.sort(x, 1),
    "top": lambda x: jnp.where(x >= jax.lax.top_k(x.reshape(-1), 3)[0][-1], x, 0.0),
    "flipped": lambda x: x[::-1],
    "rolled": lambda x: jnp.roll(x, 1, 1),
    "gathered": lambda x: x[jnp.array([1, 0, 2, 3, 4, 5])],
    "first row": lambda x: x + x[0],
    "assigned": lambda x: x.at[0].set(0.0),
    "padded": lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1],
    "reshaped": lambda x: jnp.repeat(x.reshape(-1, 2).sum(-1), 2).reshape(x.shape),
    "concatenated": lambda x: jnp.concatenate([x[3:], x[:3]]),
    "scan": scanned_sum,
    "scan of elements": lambda x: jax.lax.map(lambda row: row - row.max(), x),
    "while": counted_down,
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, lambda y: y, lambda y: -y, x),
    "inside of jit": lambda x: jit(lambda y: y - y.sum())(x),
    "inside of checkpoint": lambda x: jax.checkpoint(lambda y: y - y.sum())(x),
    "inside of a branch": lambda x: jax.lax.cond(
        jax.random.uniform(KEY) > 2, lambda y: y, lambda y: y - y.sum(), x
    ),
    "inside of custom_vjp": lambda x: doubled(x - doubled(x).sum()),
    "size": lambda x: x / x.size,
    "size of an axis": lambda x: x * 0.9 ** x.shape[0],
    "power by shape": lambda x: x ** x.shape[0],
    "branch by shape": lambda x: x * 2 if x.size > 20 else x * 3,
    "counted ones": lambda x: x / jnp.sum(jnp.ones_like(x)),
    "counted by scan": lambda x: x * jax.lax.scan(
        lambda n, one: (n + one[0], None), 0.0, jnp.ones_like(x)
    )[0],
    "counted by while": lambda x: x * jax.lax.while_loop(
        lambda n: n < x.shape[0], lambda n: n + 1, 0
    ),
    "last index": lambda x: x + jnp.arange(x.size)[-1],
    "product of ones": lambda x: x * (jnp.ones_like(x) @ jnp.ones(x.shape[-1]))[0],
    "fft": lambda x: jnp.fft.fft(x, axis=0).real,
    "callback": lambda x: jax.pure_callback(
        lambda y: np.asarray(y)[::-1], jax.ShapeDtypeStruct(x.shape, x.dtype), x
    ),
    "callback of a number": lambda x: x + jax.pure_callback(
        lambda: np.float64(x.size), jax.ShapeDtypeStruct((), x.dtype)
    ),
}  # fmt: skip
"""Functions of an array with 6 rows and 6 columns; rows or flat blocks would be wrong."""


def optimizer(update, init=lambda p: jax.tree.map(jnp.zeros_like, p)):
    """Return a function for an optimizer with one leaf of state for each parameter."""

    def step(gradients, state, params):
        both = {
            name: update(gradients[name], state[name], params[name])
            if name == "w"
            else (gradients[name], state[name])
            for name in params
        }
        return {n: each[0] for n, each in both.items()}, {
            n: each[1] for n, each in both.items()
        }

    return lambda: optax.GradientTransformation(init, step)


def is_cuttable(make, shape, averaged=None):
    found = differences_on_blocks(
        make, TYPES, {"w": shape}, averaged=averaged, wide=True
    )
    return not found


PLACES = {
    "the update": lambda mix: optimizer(lambda g, s, p: (mix(g), s)),
    "the parameter": lambda mix: optimizer(lambda g, s, p: (g * mix(p), s)),
    "the state": lambda mix: optimizer(lambda g, s, p: (g + s, mix(s + g))),
    "the state alone": lambda mix: optimizer(lambda g, s, p: (g, mix(s + g))),
    "the first state": lambda mix: optimizer(
        lambda g, s, p: (g * s, s), lambda p: {**p, "w": mix(p["w"])}
    ),
}


QUICK = ("the update", "the state", "the first state")
SOME_PLACES = [
    place if place in QUICK else pytest.param(place, marks=pytest.mark.slow)
    for place in PLACES
]


@pytest.mark.parametrize("place", SOME_PLACES)
@pytest.mark.parametrize("mix", MIXED)
def test_mixed_elements_are_never_cut(mix, place):
    make = PLACES[place](MIXED[mix])
    assert not is_cuttable(make, ROWS)
    assert not is_cuttable(make, FLAT)


@pytest.mark.parametrize("mix", MIXED)
def test_averages_that_mix_elements_are_never_cut(mix):
    def averaged(state, params):
        return {**params, "w": MIXED[mix](params["w"])}

    make = optimizer(lambda g, s, p: (g, s))
    assert not is_cuttable(make, ROWS, averaged)
    assert not is_cuttable(make, FLAT, averaged)


ELEMENTWISE = {
    "jit": lambda x: jit(lambda y: y * 2)(x),
    "custom_jvp": jax.nn.relu,
    "custom_vjp": doubled,
    "checkpoint": lambda x: jax.checkpoint(jnp.tanh)(x),
    "vmap": lambda x: jax.vmap(jnp.sin)(x),
    "one random number": lambda x: x * jax.random.normal(KEY),
    "a loop over a number": lambda x: (
        x * jax.lax.fori_loop(0, 3, lambda i, n: n * 2, 1.0)
    ),
    "a branch by a number": lambda x: jax.lax.cond(
        jax.random.uniform(KEY) > 0.5, lambda y: y, lambda y: -y, x
    ),
    "a barrier": lambda x: jax.lax.optimization_barrier((x, x * 2))[1],
    "a clip": lambda x: jnp.clip(x, -1, 1),
    "where": lambda x: jnp.where(jnp.abs(x) > 1, jnp.sign(x), x),
    "zeros": lambda x: jnp.full_like(x, 0.5) + jnp.zeros(x.shape) * x,
    "schedule": lambda x: x * optax.cosine_decay_schedule(0.1, 10)(3),
    "half floats": lambda x: x.astype(jnp.bfloat16).astype(x.dtype),
}


@pytest.mark.parametrize("place", SOME_PLACES)
@pytest.mark.parametrize("element", ELEMENTWISE)
def test_independent_elements_are_cut(element, place):
    make = PLACES[place](ELEMENTWISE[element])
    assert is_cuttable(make, ROWS)
    assert is_cuttable(make, FLAT)


UNARY = [
    jnp.tanh,
    jnp.square,
    jnp.abs,
    lambda x: x * 0.5,
    lambda x: x + 1.0,
    jax.nn.relu,
]
BINARY = [
    jnp.add,
    jnp.subtract,
    jnp.multiply,
    jnp.maximum,
    lambda x, y: jnp.where(x > 0, x, y),
    lambda x, y: x / (1 + y**2),
]
STEPS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 9)), max_size=8)


def run_steps(steps, mix, at, values):
    """Return a value that depends on all values; one of them is mixed after some steps."""
    pool = deque(values)
    for number, (op, which) in enumerate([*steps, (6, 0)]):
        if number == min(at, len(steps)) and mix is not None:
            pool.append(mix(pool[which % len(pool)]))
        x, y = pool[which % len(pool)], pool[(which + op) % len(pool)]
        pool.append(UNARY[op](x) if op < 6 else BINARY[op - 6](x, y))
    return functools.reduce(jnp.add, pool)


DRAWN = given(
    STEPS,
    st.sampled_from([None, *MIXED, *ELEMENTWISE]),
    st.integers(0, 8),
    st.booleans(),
)


@settings(max_examples=12, deadline=None)
@DRAWN
def test_blocks_of_random_updates_equal_the_whole(steps, name, at, is_flat):
    check_blocks(steps, name, at, is_flat)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@DRAWN
def test_blocks_of_many_random_updates_equal_the_whole(steps, name, at, is_flat):
    check_blocks(steps, name, at, is_flat)


def check_blocks(steps, name, at, is_flat):
    """Functions without mixed elements run on blocks, with equal results."""
    mix = None if name is None else {**MIXED, **ELEMENTWISE}[name]
    make = optimizer(
        lambda g, s, p: (
            run_steps(steps, mix, at, [g, s, p]),
            run_steps(steps[::-1], None, 0, [p, s * 0.5, g]),
        )
    )
    assert is_cuttable(make, FLAT if is_flat else ROWS) == (name not in MIXED)
    if name in MIXED:
        return
    edges = (0, 7, 36) if is_flat else (0, 12, 36)
    blocks = make_blocks("w", SHAPE, np.diff(edges).tolist())
    described = describe(make, TYPES, fn="o:make", wide=True)
    functions = block_functions(make, TYPES, blocks, described, wide=True)
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=kind.shape) for name, kind in TYPES.items()}
    updates, state = make().update(values, make().init(values), values)

    def cut(array):
        flat = np.asarray(array).reshape(-1)
        return [flat[low:high] for low, high in pairwise(edges)]

    mine = cut(values["w"])
    new, leaves = functions.update(mine, functions.init(mine), mine, 0.1)
    for one, other in zip(new, cut(values["w"] + updates["w"]), strict=True):
        np.testing.assert_allclose(one, other, 1e-12, 1e-12)
    (name,) = leaves[0]
    for one, other in zip(leaves, cut(state["w"]), strict=True):
        np.testing.assert_allclose(one[name], other, 1e-12, 1e-12)
