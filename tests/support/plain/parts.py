"""What each worker of a run computes by itself, as a plain JAX program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from placer.place.layouts.partition import RowShard, part_range
from support.plain.graph import Arrays, forward
from support.plain.step import order_of, read_functions, trained_names_of


class WorkerParts:
    """The parts of workers in the gradients of a spec whose batches are full.

    A worker's own rows, repeated until they are as many as those of the batch, are a
    batch whose rows are all as its own. So its gradient, times the share of the rows, is
    the part of the worker, for means and for sums over rows.

    Args:
        spec: the mapping of its YAML; `folder` has the modules that it calls.
        rows: a column for each input.
        initial: initial values of all parameters.

    Attributes:
        trained: the names of the parameters that have gradients.
        estimates: the gradients of each worker in each step, times the workers.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        rows: Arrays,
        initial: Mapping[str, np.ndarray],
        folder: Path,
    ) -> None:
        self._spec, self._rows, self._initial = spec, rows, initial
        self._functions = read_functions(spec, folder)
        self._order = order_of(spec["data"]["train"], rows, "drop")
        threads = spec["train"].get("threads", 1)
        self._names = [
            f"worker:{i}" if threads == 1 else f"worker:{i}.{thread}"
            for i in range(spec["nodes"]["worker"]["count"])
            for thread in range(threads)
        ]
        self._workers = len(self._names)
        self._microbatches = spec["train"].get("microbatches", 1)
        first = {name: column[:1] for name, column in rows.items()}
        self.trained = sorted(trained_names_of(spec, {**first, **initial}) & {*initial})
        self.estimates: dict[tuple[str, int], Mapping[str, np.ndarray]] = {}

        def loss(
            trained: Arrays, others: Arrays, rows: Arrays, numbers: Any, step: Any
        ) -> Any:
            parameters, functions = {**others, **trained}, self._functions
            values, state = forward(
                spec, rows, parameters, functions, step, training=True, numbers=numbers
            )
            return values[spec["train"]["minimize"]], state

        self._differentiated = jax.jit(jax.grad(loss, has_aux=True))
        self._others = {n: a for n, a in initial.items() if n not in self.trained}

    def gradient(
        self, trained: Mapping[str, np.ndarray], worker: str, step: int
    ) -> tuple[dict[str, np.ndarray], float]:
        """Return the part of a worker, and its share of the rows."""
        rows, numbers = self._own_rows(worker, step)
        gradients, _ = self._differentiated(trained, self._others, rows, numbers, step)
        estimates = {name: np.asarray(array) for name, array in gradients.items()}
        self.estimates[worker, step] = estimates
        share = 1 / self._workers
        return {name: share * array for name, array in estimates.items()}, share

    def state(
        self, used: Mapping[tuple[str, int], Mapping[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Return the state of the first worker after its steps, of the parameters that
        it used in each of them."""
        state: dict[str, Any] = {}
        first = self._names[0]
        for step in sorted(step for worker, step in used if worker == first):
            own, others = self._own_rows(first, step), {**self._others, **state}
            trained = used[first, step]
            _, state = self._differentiated(trained, others, *own, step)
        return {name: np.asarray(array) for name, array in state.items()}

    def _own_rows(self, worker: str, step: int) -> tuple[dict[str, Any], Any]:
        """Return the repeated rows of a worker, and their numbers in the batch."""
        epoch, index = divmod(step - 1, self._order.steps_per_epoch)
        batch = self._order.indices(epoch + 1, index)
        shard = RowShard((self._names.index(worker),), self._workers)
        bounds = [
            part_range(len(batch), i, self._microbatches)
            for i in range(self._microbatches)
        ]
        own = [
            start + i
            for start, stop in bounds
            for low, high in shard.ranges(stop - start)
            for i in range(low, high)
        ]
        numbers = np.tile(own, self._workers)
        assert len(numbers) == len(batch)
        rows = {name: jnp.asarray(c[batch[numbers]]) for name, c in self._rows.items()}
        return rows, jnp.asarray(numbers)
