"""A spec as a plain JAX program: whole batches, whole parameters, `jax.grad`, optax.

The reference that placed programs are held against. Of placer it takes only the order
in which rows are read; ops, gradients, updates and schedules are written here once
more, with jnp, jax.nn and optax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from placer.readers import Order

Arrays = Mapping[str, Any]


@dataclass
class Trace:
    """What a run leaves: metrics by step, evaluations by the step before, parameters."""

    history: list[dict[str, float]]
    evaluations: dict[int, dict[str, float]]
    parameters: dict[str, np.ndarray]


def run(
    spec: Mapping[str, Any],
    train_rows: Arrays,
    eval_rows: Arrays | None,
    initial: Mapping[str, np.ndarray],
    steps: int,
) -> Trace:
    """Train `steps` steps from `initial`; the spec is the YAML's own mapping."""
    metrics = spec["train"].get("metrics", [spec["train"]["minimize"]])
    trained, frozen = _divided(spec, initial)
    recipe = _recipe(spec["train"], trained)

    def loss(trained: Arrays, rows: Arrays) -> tuple[Any, Arrays]:
        values = forward(spec, rows, {**trained, **frozen})
        wanted = {name: values[name] for name in metrics}
        return values[spec["train"]["minimize"]], wanted

    @jax.jit
    def step(trained: Arrays, state: Any, rows: Arrays, rates: Arrays) -> Any:
        gradients, told = jax.grad(loss, has_aux=True)(trained, rows)
        changes, state = recipe.transform.update(gradients, state, trained)
        changes = {name: -rates[name] * change for name, change in changes.items()}
        return optax.apply_updates(trained, changes), state, told

    predict = jax.jit(lambda trained, rows: loss(trained, rows)[1])
    data = spec["data"]
    order = _order(data["train"], train_rows, "drop")
    trace = Trace([], {}, {})
    state = recipe.transform.init(trained)
    for number in range(steps):
        epoch, index = divmod(number, order.steps_per_epoch)
        rows = _taken(train_rows, order, epoch + 1, index)
        trained, state, told = step(trained, state, rows, recipe.rates(number))
        trace.history.append({name: float(told[name]) for name in metrics})
        ends = index + 1 == order.steps_per_epoch or number + 1 == steps
        if eval_rows is not None and ends:
            tests = _order(
                {**data["train"], **_EVAL, **data["eval"]}, eval_rows, "keep"
            )
            found = _evaluated(predict, trained, eval_rows, tests)
            trace.evaluations[number + 1] = {name: found[name] for name in metrics}
    trace.parameters = {k: np.asarray(v) for k, v in {**trained, **frozen}.items()}
    return trace


_EVAL = {"shuffle": False, "seed": 0, "remainder": "keep"}


def _evaluated(
    predict: Any, trained: Arrays, rows: Arrays, order: Order
) -> dict[str, float]:
    """Each batch's metrics, weighted by its rows."""
    total: dict[str, float] = {}
    seen = 0
    for index in range(order.steps_per_epoch):
        batch = _taken(rows, order, 1, index)
        count = len(next(iter(batch.values())))
        seen += count
        for name, value in predict(trained, batch).items():
            total[name] = total.get(name, 0.0) + float(value) * count
    return {name: value / seen for name, value in total.items()}


def _order(data: Mapping[str, Any], rows: Arrays, remainder: Any) -> Order:
    return Order(
        len(next(iter(rows.values()))),
        data["batch"],
        data.get("shuffle", False),
        data.get("seed", 0),
        data.get("remainder", remainder),
    )


def _taken(rows: Arrays, order: Order, epoch: int, index: int) -> dict[str, Any]:
    at = order.indices(epoch, index)
    return {name: jnp.asarray(column[at]) for name, column in rows.items()}


def _divided(
    spec: Mapping[str, Any], initial: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters that are trained, and those that keep their values."""
    kept = set()
    for name in initial:
        rules = (r for r in spec.get("parameters", []) if fnmatchcase(name, r["match"]))
        if not next(rules, {}).get("trainable", True):
            kept.add(name)
    trained = {k: jnp.asarray(v) for k, v in initial.items() if k not in kept}
    return trained, {k: jnp.asarray(v) for k, v in initial.items() if k in kept}


# The forward ops.


def forward(
    spec: Mapping[str, Any], rows: Arrays, parameters: Arrays
) -> dict[str, Any]:
    """Every value of the graph, by name."""
    values: dict[str, Any] = {**rows, **parameters}
    count = len(next(iter(rows.values())))
    for entry in _flat(spec["graph"]):
        kind, name = entry["op"], entry["name"]
        if kind == "parameter":
            continue
        inputs = entry.get("in", [])
        operands = [
            values[i] for i in ([inputs] if isinstance(inputs, str) else inputs)
        ]
        shared = entry.get("params", {})
        if kind in _LAYERS:
            for operand in _LAYERS[kind]:
                if operand == "b" and not entry.get("bias", True):
                    continue
                operands.append(values[shared.get(operand, f"{name}.{operand}")])
        attrs = {k: v for k, v in entry.items() if k not in _COMMON}
        values[name] = _OPS[kind](*operands, count=count, **attrs)
    return values


_COMMON = ("name", "op", "in", "place", "params", "size")
_LAYERS = {"fc": ("w", "b"), "embedding": ("table",)}


def _flat(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for entry in entries:
        found += _flat(entry["ops"]) if "op" not in entry else [entry]
    return found


_ACTIVATIONS = {
    "none": lambda x: x,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax,
}


def _fc(x, w, b=0.0, *, count, activation="none", transpose_w=False, bias=True):
    return _ACTIVATIONS[activation](x @ (w.T if transpose_w else w) + b)


def _matmul(a, b, *, count, transpose_a=False, transpose_b=False):
    left = a.swapaxes(-1, -2) if transpose_a else a
    return left @ (b.swapaxes(-1, -2) if transpose_b else b)


def _axis(axis):
    return tuple(axis) if isinstance(axis, list) else axis


def _reshape(x, *, count, shape):
    return x.reshape([count if d == "batch" else d for d in shape])


def _reduced(losses, reduce):
    return {"none": lambda x: x, "sum": jnp.sum, "mean": jnp.mean}[reduce](losses)


def _softmax_cross_entropy(logits, label, *, count, reduce="mean"):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    return _reduced(losses, reduce)


def _sigmoid_cross_entropy(logits, label, *, count, reduce="mean"):
    return _reduced(optax.sigmoid_binary_cross_entropy(logits, label), reduce)


_OPS: dict[str, Any] = {
    "fc": _fc,
    "matmul": _matmul,
    "add": lambda a, b, count: a + b,
    "sub": lambda a, b, count: a - b,
    "mul": lambda a, b, count: a * b,
    "div": lambda a, b, count: a / b,
    "scale": lambda x, count, factor, bias=0.0: factor * x + bias,
    "relu": lambda x, count: jax.nn.relu(x),
    "tanh": lambda x, count: jnp.tanh(x),
    "sigmoid": lambda x, count: jax.nn.sigmoid(x),
    "softmax": lambda x, count, axis=-1: jax.nn.softmax(x, axis=axis),
    "sqrt": lambda x, count: jnp.sqrt(x),
    "reshape": _reshape,
    "concat": lambda *xs, count, axis=-1: jnp.concatenate(xs, axis),
    "reduce_sum": lambda x, count, axis=None, keepdims=False: jnp.sum(
        x, _axis(axis), keepdims=keepdims
    ),
    "reduce_mean": lambda x, count, axis=None, keepdims=False: jnp.mean(
        x, _axis(axis), keepdims=keepdims
    ),
    "embedding": lambda ids, table, count: table[ids],
    "softmax_cross_entropy": _softmax_cross_entropy,
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "mean_squared_error": lambda a, b, count, reduce="mean": _reduced(
        (a - b) ** 2, reduce
    ),
    "accuracy": lambda logits, label, count: jnp.mean(
        (jnp.argmax(logits, -1) == label).astype(logits.dtype)
    ),
    "constant": lambda count, value, dtype="float32", shape=(): jnp.full(shape, value),
}


# The optimizers.


@dataclass(frozen=True)
class Recipe:
    """optax's transformation, and the learning rate of each parameter at a step."""

    transform: Any
    label: dict[str, int]
    schedules: list[Callable[[int], float]]

    def rates(self, step: int) -> dict[str, float]:
        """The rate of every parameter at the step, which counts from 0."""
        return {name: self.schedules[i](step) for name, i in self.label.items()}


def _recipe(train: Mapping[str, Any], trained: Arrays) -> Recipe:
    entries = train["optimizer"]
    entries = [entries] if isinstance(entries, dict) else entries
    label = {
        name: next(
            i for i, e in enumerate(entries) if fnmatchcase(name, e.get("match", "*"))
        )
        for name in trained
    }
    groups = {i: optax.chain(_clip(e), _rule(e)) for i, e in enumerate(entries)}
    transform = optax.chain(_clip(train), optax.multi_transform(groups, label))
    return Recipe(transform, label, [schedule(e["learning_rate"]) for e in entries])


def _rule(entry: Mapping[str, Any]) -> Any:
    match entry["op"]:
        case "sgd":
            return optax.identity()
        case "momentum":
            return optax.trace(decay=entry.get("momentum", 0.9))
    named = {k: entry[k] for k in ("b1", "b2", "eps") if k in entry}
    return optax.scale_by_adam(**named)


def _clip(entry: Mapping[str, Any]) -> Any:
    if "clip" in entry:
        return optax.clip_by_global_norm(entry["clip"]["global_norm"])
    return optax.identity()


def schedule(spec: Any) -> Callable[[int], float]:
    """A learning rate as a spec writes it, as a function of the step from 0.

    In Python's floats: optax computes schedules in float32 also where x64 is on.
    """
    if not isinstance(spec, dict):
        return lambda step: spec
    ((name, body),) = spec.items()
    steps = body["steps"]
    if name == "exponential":
        init, rate = body["init"], body["rate"]
        if body.get("staircase"):
            return lambda step: init * rate ** (step // steps)
        return lambda step: init * rate ** (step / steps)
    if name == "cosine":
        init, alpha = body["init"], body.get("alpha", 0.0)
        low = alpha * init
        wave = lambda step: (1 + math.cos(math.pi * min(1.0, step / steps))) / 2  # noqa: E731
        return lambda step: low + (init - low) * wave(step)
    start, then = body.get("from", 0.0), schedule(body["then"])
    return lambda step: (
        start + (then(0) - start) * step / steps if step < steps else then(step - steps)
    )
