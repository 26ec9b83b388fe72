"""Runs a spec as a plain JAX program: whole batches and parameters, `jax.grad`, optax.

This is the reference for placed programs. From placer it uses only the order in which
rows are read; ops, gradients, updates and schedules are written again with jnp, jax.nn
and optax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from placer.readers import Order
from support.imported_files import import_file
from support.plain import metrics as plain_metrics
from support.plain.graph import (
    Arrays,
    Functions,
    as_list,
    flatten_ops,
    forward,
    parameter_names,
)
from support.plain.training import parameter_rule, read_recipe


@dataclass
class Trace:
    """The results of a run: metrics per step, evaluations, parameters.

    `evaluations` has the number of the last step before each evaluation. `gradients`
    has the gradients per step, of a plain run only.
    """

    history: list[dict[str, float]]
    evaluations: dict[int, dict[str, float]]
    parameters: dict[str, np.ndarray]
    gradients: list[dict[str, np.ndarray]] = field(default_factory=list)


def run(
    spec: Mapping[str, Any],
    train_rows: Arrays,
    eval_rows: Arrays | None,
    initial: Mapping[str, np.ndarray],
    steps: int,
    folder: Path | None = None,
) -> Trace:
    """Train for `steps` steps from `initial`.

    `spec` is the mapping of its YAML, `folder` has the modules that it calls.
    """
    functions = read_functions(spec, folder)
    metrics = spec["train"].get("metrics", [spec["train"]["minimize"]])
    of_metric = {
        e["name"]: e for e in flatten_ops(spec["graph"]) if e["name"] in metrics
    }
    first = {name: column[:1] for name, column in train_rows.items()}
    trained_names = trained_names_of(spec, {**first, **initial})
    trained = {k: jnp.asarray(v) for k, v in initial.items() if k in trained_names}
    untrained = {
        k: jnp.asarray(v) for k, v in initial.items() if k not in trained_names
    }
    recipe = read_recipe(spec, trained, steps, functions)

    def loss(
        trained: Arrays, untrained: Arrays, rows: Arrays, step: Any, training: bool
    ) -> tuple[Any, Any]:
        values, state = forward(
            spec, rows, {**trained, **untrained}, functions, step, training=training
        )
        reported = {name: values[name] for name in metrics}
        return values[spec["train"]["minimize"]], (reported, state)

    @jax.jit
    def step(
        trained: Arrays, untrained: Arrays, state: Any, rows: Arrays, number: Any
    ) -> Any:
        gradient = jax.grad(loss, has_aux=True)
        gradients, (reported, new) = gradient(trained, untrained, rows, number, True)
        trained, state = recipe.step(gradients, state, trained)
        return trained, {**untrained, **new}, state, reported, gradients

    @jax.jit
    def predict(trained: Arrays, untrained: Arrays, rows: Arrays, number: Any) -> Any:
        return loss(trained, untrained, rows, number, False)[1][0]

    def numbers(batches: list[Any], counts: list[int]) -> dict[str, float]:
        """Return the reported numbers of several batches.

        A metric is computed over all rows, another scalar is a mean weighted by rows.
        """
        result = {}
        for name in metrics:
            of_batches = [reported[name] for reported in batches]
            entry = of_metric.get(name, {})
            if entry.get("op") in plain_metrics.METRICS:
                result[name] = plain_metrics.metric_value(entry, of_batches)
            else:
                result[name] = float(np.average(of_batches, weights=counts))
        return result

    data = spec["data"]
    order = order_of(data["train"], train_rows, "drop")
    trace = Trace([], {}, {})
    state = recipe.init(trained)
    for number in range(1, steps + 1):
        epoch, index = divmod(number - 1, order.steps_per_epoch)
        rows = _batch_rows(train_rows, order, epoch + 1, index)
        trained, untrained, state, reported, gradients = step(
            trained, untrained, state, rows, number
        )
        trace.history.append(numbers([reported], [1]))
        trace.gradients.append({k: np.asarray(v) for k, v in gradients.items()})
        ends = index + 1 == order.steps_per_epoch or number == steps
        if eval_rows is not None and ends:
            section = {**data["train"], **_EVAL, **data["eval"]}
            tests = order_of(section, eval_rows, "keep")
            batches = [
                _batch_rows(eval_rows, tests, 1, i)
                for i in range(tests.steps_per_epoch)
            ]
            evaluated = recipe.evaluated(state, trained)
            trace.evaluations[number] = numbers(
                [predict(evaluated, untrained, batch, number) for batch in batches],
                [len(next(iter(batch.values()))) for batch in batches],
            )
    saved = {**recipe.evaluated(state, trained), **untrained}
    trace.parameters = {k: np.asarray(v) for k, v in saved.items()}
    return trace


def predict(
    spec: Mapping[str, Any],
    rows: Arrays,
    parameters: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    folder: Path | None = None,
) -> dict[str, np.ndarray]:
    """Return these values of the graph for all rows, in batches of an evaluation."""
    section = {
        **spec["data"]["train"],
        **_EVAL,
        **spec["data"]["eval"],
        "shuffle": False,
    }
    order = order_of(section, rows, "keep")
    functions = read_functions(spec, folder)
    batches = []
    for i in range(order.steps_per_epoch):
        batch = _batch_rows(rows, order, 1, i)
        values, _ = forward(spec, batch, parameters, functions, 0, training=False)
        batches.append(values)
    return {
        name: np.concatenate([values[name] for values in batches]) for name in outputs
    }


_FUNCTIONS = ("fn", "eval_params")
_EVAL = {"shuffle": False, "seed": 0, "remainder": "keep"}


def order_of(data: Mapping[str, Any], rows: Arrays, remainder: Any) -> Order:
    return Order(
        len(next(iter(rows.values()))),
        data["batch"],
        data.get("shuffle", False),
        data.get("seed", 0),
        data.get("remainder", remainder),
    )


def _batch_rows(rows: Arrays, order: Order, epoch: int, index: int) -> dict[str, Any]:
    at = order.indices(epoch, index)
    return {name: jnp.asarray(column[at]) for name, column in rows.items()}


def read_functions(spec: Mapping[str, Any], folder: Path | None) -> Functions:
    """Return the functions that the spec calls, from its modules."""
    functions = {}
    optimizers = spec["train"]["optimizer"]
    entries = [
        *(each for each in flatten_ops(spec["graph"]) if each["op"] == "call"),
        *([optimizers] if isinstance(optimizers, dict) else optimizers),
    ]
    paths = [entry[key] for entry in entries for key in _FUNCTIONS if key in entry]
    for path in paths:
        module, _, name = path.partition(":")
        assert folder is not None
        loaded = import_file(folder / f"{module}.py")
        functions[path] = getattr(loaded, name)
    return functions


def _out_names(entry: Mapping[str, Any]) -> set[str]:
    """Return the names of the results in `out`, which has types too for a `call`."""
    out = entry.get("out", [])
    if entry["op"] == "call":
        return (
            set() if isinstance(out, str) else {name for each in out for name in each}
        )
    return {*as_list(out)}


_WITHOUT_GRADIENT = {
    *("stop_gradient", "argmax", "argmin", "one_hot", "greater", "less", "equal"),
}
_INDICES = {"gather": 1, "take_along_axis": 1}


def trained_names_of(spec: Mapping[str, Any], known: Arrays) -> set[str]:
    """Return the trainable parameters that the loss depends on.

    An optimizer does not change the others, not even by weight decay.
    """
    wanted = {spec["train"]["minimize"]}
    for entry in reversed(flatten_ops(spec["graph"])):
        kind, name = entry["op"], entry["name"]
        results = {name, *_out_names(entry)}
        results |= {n for n in wanted if n.startswith(f"{name}.") and n not in known}
        if kind in _WITHOUT_GRADIENT or not results & wanted:
            continue
        inputs = as_list(entry.get("in", []))
        if kind in _INDICES:
            inputs = inputs[: _INDICES[kind]]
        wanted.update(inputs)
        wanted.update(parameter_names(entry, known).values())
        for key, source in entry.get("params", {}).items():
            wanted.add(source if isinstance(source, str) else f"{name}.{key}")
    states = {
        f"{entry['name']}.{key}"
        for entry in flatten_ops(spec["graph"])
        for key in ("running_mean", "running_variance", *entry.get("state", {}))
    }
    return {
        name
        for name in known
        if name in wanted
        and name not in states
        and parameter_rule(spec, name).get("trainable", True)
        and name not in spec["inputs"]
    }
