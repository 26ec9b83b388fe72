"""A spec as a plain JAX program: whole batches, whole parameters, `jax.grad`, optax.

The reference that placed programs are held against. Of placer it takes only the order
in which rows are read; ops, gradients, updates and schedules are written once more, with
jnp, jax.nn and optax.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from placer.readers import Order
from support.plain import metrics as plain_metrics
from support.plain.graph import Arrays, Functions, flat, forward, listed, parameters_of
from support.plain.training import recipe, rule_of


@dataclass
class Trace:
    """What a run leaves: metrics by step, evaluations by the step before, parameters;
    the plain one the gradients of each step too."""

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
    """Train `steps` steps from `initial`; the spec is the YAML's own mapping, `folder`
    holds the modules that it calls."""
    functions = _functions(spec, folder)
    metrics = spec["train"].get("metrics", [spec["train"]["minimize"]])
    of_metric = {e["name"]: e for e in flat(spec["graph"]) if e["name"] in metrics}
    first = {name: column[:1] for name, column in train_rows.items()}
    reached = _reached(spec, {**first, **initial})
    trained = {k: jnp.asarray(v) for k, v in initial.items() if k in reached}
    kept = {k: jnp.asarray(v) for k, v in initial.items() if k not in reached}
    how = recipe(spec, trained, steps)

    def loss(
        trained: Arrays, kept: Arrays, rows: Arrays, step: Any, training: bool
    ) -> tuple[Any, Any]:
        values, state = forward(
            spec, rows, {**trained, **kept}, functions, step, training=training
        )
        told = {name: values[name] for name in metrics}
        return values[spec["train"]["minimize"]], (told, state)

    @jax.jit
    def step(
        trained: Arrays, kept: Arrays, state: Any, rows: Arrays, number: Any
    ) -> Any:
        gradient = jax.grad(loss, has_aux=True)
        gradients, (told, new) = gradient(trained, kept, rows, number, True)
        trained, state = how.step(gradients, state, trained)
        return trained, {**kept, **new}, state, told, gradients

    @jax.jit
    def predict(trained: Arrays, kept: Arrays, rows: Arrays, number: Any) -> Any:
        return loss(trained, kept, rows, number, False)[1][0]

    def numbers(batches: list[Any], counts: list[int]) -> dict[str, float]:
        """What is told of several batches: a metric of all their rows, of another
        scalar the mean by rows."""
        found = {}
        for name in metrics:
            of_batches = [told[name] for told in batches]
            entry = of_metric.get(name, {})
            if entry.get("op") in plain_metrics.METRICS:
                found[name] = plain_metrics.number(entry, of_batches)
            else:
                found[name] = float(np.average(of_batches, weights=counts))
        return found

    data = spec["data"]
    order = _order(data["train"], train_rows, "drop")
    trace = Trace([], {}, {})
    state = how.begin(trained)
    for number in range(1, steps + 1):
        epoch, index = divmod(number - 1, order.steps_per_epoch)
        rows = _taken(train_rows, order, epoch + 1, index)
        trained, kept, state, told, gradients = step(trained, kept, state, rows, number)
        trace.history.append(numbers([told], [1]))
        trace.gradients.append({k: np.asarray(v) for k, v in gradients.items()})
        ends = index + 1 == order.steps_per_epoch or number == steps
        if eval_rows is not None and ends:
            section = {**data["train"], **_EVAL, **data["eval"]}
            tests = _order(section, eval_rows, "keep")
            batches = [
                _taken(eval_rows, tests, 1, i) for i in range(tests.steps_per_epoch)
            ]
            trace.evaluations[number] = numbers(
                [predict(trained, kept, batch, number) for batch in batches],
                [len(next(iter(batch.values()))) for batch in batches],
            )
    trace.parameters = {k: np.asarray(v) for k, v in {**trained, **kept}.items()}
    return trace


_EVAL = {"shuffle": False, "seed": 0, "remainder": "keep"}


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


def _functions(spec: Mapping[str, Any], folder: Path | None) -> Functions:
    """The functions that the spec calls, from its own modules."""
    found = {}
    for entry in flat(spec["graph"]):
        if entry["op"] == "call":
            module, _, name = entry["fn"].partition(":")
            assert folder is not None
            file = importlib.util.spec_from_file_location(
                f"{module}_of_the_plain_program", folder / f"{module}.py"
            )
            assert file is not None
            assert file.loader is not None
            loaded = importlib.util.module_from_spec(file)
            file.loader.exec_module(loaded)
            found[entry["fn"]] = getattr(loaded, name)
    return found


def _outs(entry: Mapping[str, Any]) -> set[str]:
    """The names that `out` gives: of a `call`, with their types."""
    out = entry.get("out", [])
    if entry["op"] == "call":
        return (
            set() if isinstance(out, str) else {name for each in out for name in each}
        )
    return {*listed(out)}


_NO_WAY_BACK = {
    *("stop_gradient", "argmax", "argmin", "one_hot", "greater", "less", "equal"),
}
_INDICES = {"gather": 1, "take_along_axis": 1}


def _reached(spec: Mapping[str, Any], known: Arrays) -> set[str]:
    """The trainable parameters that the loss depends on: an optimizer leaves the others
    as they are, also where it would decay them."""
    wanted = {spec["train"]["minimize"]}
    for entry in reversed(flat(spec["graph"])):
        kind, name = entry["op"], entry["name"]
        made = {name, *_outs(entry)}
        made |= {n for n in wanted if n.startswith(f"{name}.") and n not in known}
        if kind in _NO_WAY_BACK or not made & wanted:
            continue
        inputs = listed(entry.get("in", []))
        if kind in _INDICES:
            inputs = inputs[: _INDICES[kind]]
        wanted.update(inputs)
        wanted.update(parameters_of(entry, known).values())
        for key, given in entry.get("params", {}).items():
            wanted.add(given if isinstance(given, str) else f"{name}.{key}")
    states = {
        f"{entry['name']}.{key}"
        for entry in flat(spec["graph"])
        for key in ("running_mean", "running_variance", *entry.get("state", {}))
    }
    return {
        name
        for name in known
        if name in wanted
        and name not in states
        and rule_of(spec, name).get("trainable", True)
        and name not in spec["inputs"]
    }
