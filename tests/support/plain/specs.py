"""Models of `specs/` as plain JAX programs with optax, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn import datasets

from placer.readers import Order
from support.imported_files import import_file

SPECS = Path(__file__).parents[3] / "specs"
Loss = Callable[[dict[str, Any], dict[str, Any]], tuple[Any, dict[str, Any]]]


@dataclass(frozen=True)
class Program:
    """The columns of a model, the order of its rows, its loss and its optimizer.

    `loss` returns the loss and the metrics.
    """

    columns: dict[str, np.ndarray]
    order: Callable[[int], Order]
    loss: Loss
    optimizer: optax.GradientTransformation


def train(program: Program, initial: dict[str, np.ndarray], steps: int) -> Any:
    """Train; return the metrics of every step and the final parameters.

    Floats have the dtype of the initial values.
    """
    wide = next(iter(initial.values())).dtype
    columns = {
        name: column.astype(wide) if column.dtype.kind == "f" else column
        for name, column in program.columns.items()
    }
    parameters = {name: jnp.asarray(value) for name, value in initial.items()}
    state = program.optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, rows: Any) -> Any:
        grad = jax.grad(program.loss, has_aux=True)
        gradients, metrics = grad(parameters, rows)
        changes, state = program.optimizer.update(gradients, state)
        return optax.apply_updates(parameters, changes), state, metrics

    order = program.order(len(next(iter(columns.values()))))
    history = []
    for number in range(steps):
        epoch, index = divmod(number, order.steps_per_epoch)
        at = order.indices(epoch + 1, index)
        rows = {name: column[at] for name, column in columns.items()}
        parameters, state, metrics = step(parameters, state, rows)
        history.append({name: float(value) for name, value in metrics.items()})
    return history, {name: np.asarray(value) for name, value in parameters.items()}


def _train_rows(bunch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the training rows: after a fixed permutation, all but the last fifth."""
    rows = len(bunch.target)
    indices = np.random.default_rng(0).permutation(rows)[: rows - rows // 5]
    return bunch.data[indices], bunch.target[indices]


def _classes(logits: Any, label: Any) -> tuple[Any, dict[str, Any]]:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    right = jnp.argmax(logits, axis=1) == label
    return losses.mean(), {
        "loss": losses.mean(),
        "accuracy": right.astype(logits.dtype).mean(),
    }


def _as_float(count: Any) -> Any:
    """Return a step, from 0, as float64 if x64 is enabled, otherwise float32."""
    return jnp.asarray(count, float)


def digits() -> Program:
    data, target = _train_rows(datasets.load_digits())

    def loss(p: dict[str, Any], rows: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        h1 = jnp.maximum(rows["image"] @ p["h1.w"] + p["h1.b"], 0)
        return _classes(h1 @ p["logits.w"] + p["logits.b"], rows["label"])

    return Program(
        {"image": data, "label": target.astype(np.int32)},
        lambda rows: Order(rows, 128, True, 7, "drop"),
        loss,
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adam(
                lambda count: 5e-3 * (1 + jnp.cos(jnp.pi * _as_float(count) / 220))
            ),
        ),
    )


def diabetes() -> Program:
    data, target = _train_rows(datasets.load_diabetes())

    def loss(p: dict[str, Any], rows: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        h1 = jnp.tanh(20 * rows["x"] @ p["h1.w"] + p["h1.b"])
        error = (h1 @ p["out.w"] + p["out.b"])[:, 0] - rows["y"]
        rmse = jnp.sqrt(jnp.mean(error**2))
        total = rmse + 1e-3 * jnp.sum(p["h1.w"] ** 2)
        return total, {"loss": total, "rmse": rmse}

    def rate(count: Any) -> Any:
        risen = 0.02 * _as_float(count) / 20
        return jnp.where(
            count < 20, risen, 0.02 * 0.9 ** ((_as_float(count) - 20) / 200)
        )

    return Program(
        {"x": data, "y": target.astype(float)},
        lambda rows: Order(rows, 32, True, 11, "drop"),
        loss,
        optax.adam(rate),
    )


def seed_ctr() -> Program:
    module = import_file(SPECS / "seed_ctr_rows.py")
    rows = list(module.train())

    def loss(p: dict[str, Any], rows: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        h = p["embedding.table"][rows["ids"]]
        for layer in ("fc1", "fc2", "fc3"):
            h = jax.nn.relu(h @ p[f"{layer}.w"] + p[f"{layer}.b"])
        return _classes(h @ p["predict.w"] + p["predict.b"], rows["label"])

    return Program(
        {n: np.array([row[n] for row in rows], np.int32) for n in ("ids", "label")},
        lambda rows: Order(rows, 512, True, 1, "drop"),
        loss,
        optax.adam(1e-4),
    )


def two_workers() -> Program:
    data, target = _train_rows(datasets.load_iris())

    def loss(p: dict[str, Any], rows: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        h = rows["features"]
        for layer in ("h1", "h2"):
            h = jax.nn.relu(h @ p[f"{layer}.w"] + p[f"{layer}.b"])
        return _classes(h @ p["logits.w"] + p["logits.b"], rows["species"])

    return Program(
        {"features": data, "species": target.astype(np.int32)},
        lambda rows: Order(rows, 24, True, 3, "drop"),
        loss,
        optax.sgd(0.02, momentum=0.9),
    )
