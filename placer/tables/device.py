"""A dense table on devices: blocks are JAX arrays, and each update is one compiled call.

Updates create new arrays and never overwrite old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from placer.plan.plan import Table
from placer.plan.settings.training.optimizers import VALUES
from placer.tables.block_table import Snapshot
from placer.tables.optimizer_rules import Kernel, StepNumbers, arrays_of
from placer.tables.rule_table import RuleTable

Arrays = tuple[jax.Array, ...]
Put = Callable[[Sequence[Any]], Arrays]


class DeviceTable(RuleTable):
    """A table on the devices of one node.

    Args:
        planned: the table in the plan.
        dtype: the dtype of values, slots and gradients.
        initial: the initial values, one array per block, of the block's shape.
        put: copies arrays to all devices.
    """

    def __init__(
        self, planned: Table, dtype: str, initial: Iterable[npt.ArrayLike], put: Put
    ) -> None:
        super().__init__(planned, dtype)
        self._put = put
        self._directions: Arrays | None = None
        self._values = put(list(initial))
        self._slots = {
            slot: put([np.full(b.shape, start, self.dtype) for b in self.blocks])
            for slot, start in self.rule.first_slots.items()
        }

    def values(self) -> Arrays:
        return self._values

    def slots(self) -> dict[str, tuple[npt.NDArray[Any], ...]]:
        return {slot: tuple(map(np.array, each)) for slot, each in self._slots.items()}

    def load(self, values: Sequence[Any]) -> None:
        self._values = self._put(self.check_fits(values, "value"))

    @contextmanager
    def editing(self) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """Yield copies of the values in host memory, and load them at the end."""
        copies = tuple(map(np.array, self._values))
        yield copies
        self._values = self._put(copies)

    def load_slots(self, slots: Mapping[str, Sequence[Any]]) -> None:
        fitting = self.check_slots(slots)
        self._slots = {slot: self._put(arrays) for slot, arrays in fitting.items()}

    def snapshot(
        self, blocks: Sequence[int], reuse: Snapshot | None = None
    ) -> Snapshot:
        del reuse  # arrays on devices never change, so no copy is needed
        arrays = {VALUES: self._values, **self._slots}
        return {name: tuple(each[i] for i in blocks) for name, each in arrays.items()}

    def warm_up(self, sources: int = 1) -> None:
        """Compile an update by running it and dropping the results."""
        del sources  # gradients are already summed
        values, slots = self._values, dict(self._slots)
        zeros = [jax.numpy.zeros_like(value) for value in values]
        if len(self.kernels) == 1:
            self.update(zeros, learning_rate=0.0)
        else:
            self.compute_directions(zeros)
            self.apply_directions([0.0] * len(self.blocks), learning_rate=0.0)
        self._values, self._slots, self.step = values, slots, 0

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        arrays = self.check_fits(gradients, "gradient")
        self._values = self._run(self.kernels[0], arrays, scale, learning_rate)
        self.step += 1

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> Arrays:
        arrays = self.check_fits(gradients, "gradient")
        self._directions = self._run(self.kernels[0], arrays, scale, 0.0)
        return self._directions

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        assert self._directions is not None, "compute_directions comes first"
        directions = list(self._directions)
        scale = tuple(ratios)
        self._values = self._run(self.kernels[1], directions, scale, learning_rate)
        self._directions = None
        self.step += 1

    def _run(
        self, kernel: Kernel, gradients: list[Any], scale: Any, rate: float
    ) -> Arrays:
        names, arrays = arrays_of(kernel), {"value": self._values, **self._slots}
        numbers, indices = self.next_numbers(rate)
        results: tuple[Arrays, ...] = _run(
            kernel,
            [arrays[name] for name in names],
            gradients,
            list(self.scale_per_block(scale)),
            numbers,
            indices=indices,
        )
        self._slots.update(zip(names[1:], results[1:], strict=True))
        return results[0]


@partial(jax.jit, static_argnums=0, static_argnames="indices")
def _run(
    kernel: Kernel,
    arrays: list[Arrays],
    gradients: list[jax.Array],
    scales: list[Any],
    numbers: tuple[jax.Array, ...],
    *,
    indices: tuple[int, ...],
) -> tuple[Arrays, ...]:
    blocks = []
    for i, gradient in enumerate(gradients):
        mine = numbers[indices[i]]
        reads = [each[i].astype(mine.dtype) for each in arrays]
        scaled = jax.numpy.asarray(scales[i], mine.dtype) * gradient.astype(mine.dtype)
        results = kernel(*reads, scaled, StepNumbers(*mine))
        blocks.append([result.astype(gradient.dtype) for result in results])
    return tuple(zip(*blocks, strict=True))
