"""Small tables, and the optax transformations that they are compared with."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from placer import ops
from placer.plan.plan import MEMORY, Table
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.slicing import Block
from placer.tables.dense import DenseTable
from support.ftrl import ftrl
from support.initial import compute_values

SHAPES = {"h1.w": (13, 7), "h1.b": (7,), "out.w": (7, 300), "gain": ()}
INITS = {"h1.w": "normal", "h1.b": "zeros", "out.w": "xavier_uniform", "gain": "ones"}
RATES = [0.05 / (1 + step) for step in range(20)]
OPTAX_RULES = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "nesterov": partial(optax.sgd, momentum=0.9, nesterov=True),
    "adagrad": optax.adagrad,
    "rmsprop": optax.rmsprop,
    "adadelta": optax.adadelta,
    "adam": optax.adam,
    "adamw": optax.adamw,
    "adamax": optax.adamax,
    "nadam": optax.nadam,
    "lion": optax.lion,
    "lamb": optax.lamb,
    "lars": optax.lars,
    "ftrl": ftrl,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((rule, {}) for rule in sorted(OPTAX_RULES)),
    ("momentum", {"momentum": 0.5}),
    ("nesterov", {"momentum": 0.5}),
    ("adagrad", {"initial_accumulator_value": 0.0, "eps": 1e-3}),
    ("rmsprop", {"centered": True}),
    ("rmsprop", {"momentum": 0.7, "decay": 0.8}),
    ("rmsprop", {"momentum": 0.7, "centered": True, "initial_scale": 0.5}),
    ("adadelta", {"rho": 0.7, "eps": 1e-3}),
    ("adam", {"b1": 0.8, "b2": 0.99, "eps": 1e-3}),
    ("adam", {"b1": 0.0, "b2": 0.0}),
    ("adamw", {"weight_decay": 0.3}),
    ("adamax", {"b1": 0.8, "b2": 0.9, "eps": 1e-3}),
    ("nadam", {"b1": 0.8, "b2": 0.99, "eps": 1e-3}),
    ("lion", {"b1": 0.8, "b2": 0.9, "weight_decay": 0.3}),
    ("lamb", {"b1": 0.8, "weight_decay": 0.3, "eps": 1e-3}),
    ("ftrl", {"l1": 0.3, "l2": 0.1, "beta": 1.0}),
    ("lars", {"weight_decay": 0.3, "trust_coefficient": 0.1, "eps": 1e-2}),
]
ONE_PHASE = [case for case in VARIANTS if not optimizers.RULES[case[0]].is_two_phase]


def slow_but_variants(quick, every=VARIANTS):
    """Return the variants `every` for `parametrize`; those not in `quick` are slow."""
    assert all(case in every for case in quick)
    slow = pytest.mark.slow
    return [c if c in quick else pytest.param(c, marks=slow) for c in every]


def case_id(case: tuple[str, dict[str, Any]]) -> str:
    rule, hyper = case
    return "-".join([rule, *(f"{key}={value}" for key, value in hyper.items())])


def whole_block(name: str, decays: bool = True) -> Block:
    size = int(np.prod(SHAPES[name]))
    return Block(name, name, 0, size, SHAPES[name], decays=decays)


def block_of(name: str, low: int, high: int, index: int = 0) -> Block:
    name_ = f"{name}.block{index}"
    return Block(name, name_, low, high, (high - low,))


ALL = [whole_block(name) for name in SHAPES]


def planned(blocks, rule="sgd", hyper=None, *, name="ps", in_place=False) -> Table:
    """Return a table of a plan, in host memory."""
    return Table(
        name=name,
        rule=rule,
        hyper=hyper or {},
        learning_rate=0.1,
        blocks=tuple(blocks),
        in_place=in_place,
        devices=MEMORY,
    )


def make_table(
    blocks, rule="sgd", hyper=None, dtype="float32", *, in_place=False, **memory
) -> DenseTable:
    table = planned(blocks, rule, hyper, in_place=in_place)
    return DenseTable(table, dtype, initial_values(blocks, dtype), **memory)


def initial_values(blocks, dtype, seed=5, inits=INITS, shapes=SHAPES):
    """Return the initial values of the blocks, each of its block's shape."""
    return [
        compute_values(
            inits[block.parameter],
            seed=seed,
            name=block.parameter,
            shape=shapes[block.parameter],
            start=block.start,
            stop=block.stop,
            dtype=dtype,
        ).reshape(block.shape)
        for block in blocks
    ]


def make_gradients(step: int, dtype: Any = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {name: rng.normal(size=s).astype(dtype) for name, s in SHAPES.items()}


def update_table(
    table: DenseTable, gradients: list[np.ndarray], rate: float, scale: Any = None
) -> None:
    """Update whole parameters once, by a rule of one or two phases."""
    if not table.rule.is_two_phase:
        table.update(gradients, learning_rate=rate, scale=scale)
        return
    values, directions = (
        table.values(),
        table.compute_directions(gradients, scale=scale),
    )
    table.apply_directions(
        [trust_ratio_of(table, v, d) for v, d in zip(values, directions, strict=True)],
        learning_rate=rate,
    )


def trust_ratio_of(
    table: DenseTable, value: np.ndarray, direction: np.ndarray
) -> float:
    squares = [float(np.square(a, dtype=np.float64).sum()) for a in (value, direction)]
    return trust_ratio(*squares, table.rule.trust_ratio)


def trust_ratio(
    value: float, direction: float, parameters: tuple[float, float] = (1.0, 0.0)
) -> float:
    """Return the trust ratio of the op in float64, for sums of squares and the
    parameters (coefficient, eps)."""
    coefficient, eps = parameters
    with jax.enable_x64(True):
        return float(
            ops.trust_ratio(
                *map(jnp.asarray, (value, direction)), coefficient=coefficient, eps=eps
            )
        )


def run_optax(
    rule: str,
    hyper: dict[str, Any],
    values: dict[str, np.ndarray],
    gradients_per_step: list[dict[str, np.ndarray]],
    mask: dict[str, bool] | None = None,
) -> dict[str, np.ndarray]:
    """Return the values after these gradients, computed by optax with `RATES`."""
    arguments = dict(hyper)
    if mask is not None:
        arguments["weight_decay_mask" if rule == "lars" else "mask"] = mask
    rates = jnp.asarray(RATES, next(iter(values.values())).dtype)
    transform = OPTAX_RULES[rule](lambda count: rates[count], **arguments)

    def step(values, state, gradients):
        change, state = transform.update(gradients, state, values)
        return optax.apply_updates(values, change), state

    state = transform.init(values)
    for gradients in gradients_per_step:
        values, state = step(values, state, gradients)
    return {name: np.asarray(value) for name, value in values.items()}
