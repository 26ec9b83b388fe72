"""A dense table on devices: blocks as JAX arrays, each update one compiled call.

Arrays are never written over, so whoever has one keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.config import optimizers
from placer.tables.block import ParameterBlock, check_fits, check_slots
from placer.tables.initial import initial_values
from placer.tables.rules import Kernel, compute_numbers, kernels_of

Arrays = tuple[jax.Array, ...]
Put = Callable[[Sequence[Any]], Arrays]


class DeviceTable:
    """Blocks of one optimizer on devices of one node, with their slots and step count.

    `put` copies arrays to these devices, each device all of them. Used by one thread at a
    time. float16 and bfloat16 are computed in float32 and rounded once an update, as in a
    table in host memory.
    """

    def __init__(
        self,
        name: str,
        blocks: Sequence[ParameterBlock],
        rule: str,
        hyper: Mapping[str, float],
        *,
        dtype: str,
        seed: int,
        initializers: Mapping[str, initial_values.Initializer],
        put: Put,
    ) -> None:
        self.name = name
        self.blocks = tuple(blocks)
        self.block_of_gradient = {
            block.gradient: i for i, block in enumerate(self.blocks) if block.gradient
        }
        self.rule = rule
        self.dtype = np.dtype(dtype)
        self.step = 0
        self.hyper = optimizers.complete(rule, hyper)
        self._real = np.dtype("float32") if self.dtype.itemsize == 2 else self.dtype
        self._put = put
        self._directions: Arrays | None = None
        self._values = put(
            [b.initial_values(initializers, seed, dtype) for b in self.blocks]
        )
        self._kernels = kernels_of(rule, self.hyper)
        self._slots = {
            slot: put([np.full(b.shape, start, self.dtype) for b in self.blocks])
            for slot, start in optimizers.slots(rule, self.hyper).items()
        }

    def values(self) -> Arrays:
        """The values of the blocks, in their order."""
        return self._values

    def slots(self) -> dict[str, tuple[npt.NDArray[Any], ...]]:
        """Copies of the optimizer state in host memory: for each slot one array a block."""
        return {
            slot: tuple(np.array(array) for array in arrays)
            for slot, arrays in self._slots.items()
        }

    def load(self, values: Sequence[npt.ArrayLike]) -> None:
        """Set the values, one array a block; slots and step stay as they are.

        Raises RunError for arrays that do not fit the blocks.
        """
        self._values = self._put(self._fitting(values, "value"))

    def load_slots(self, slots: Mapping[str, Sequence[npt.ArrayLike]]) -> None:
        """Set the optimizer state, as `slots` returns it; values and step stay as they
        are. Raises RunError for other slots, or arrays that do not fit the blocks."""
        check_slots(self.name, self._slots, slots)
        fitted = {slot: self._fitting(arrays, slot) for slot, arrays in slots.items()}
        self._slots = {slot: self._put(arrays) for slot, arrays in fitted.items()}

    def warm_up(self, sources: int = 1) -> None:
        """Compile an update, by running one whose results are dropped."""
        del sources  # gradients arrive summed
        values, slots = self._values, dict(self._slots)
        zeros = [jax.numpy.zeros_like(value) for value in values]
        if len(self._kernels) == 1:
            self.update(zeros, learning_rate=0.0)
        else:
            self.compute_directions(zeros)
            self.apply_directions([0.0] * len(self.blocks), learning_rate=0.0)
        self._values, self._slots, self.step = values, slots, 0

    def update(
        self,
        gradients: Sequence[Any],
        *,
        learning_rate: float,
        scale: Any = None,
    ) -> None:
        """Apply one gradient a block, each multiplied by `scale`: one for all, or one a
        block. Raises RunError for gradients that do not fit the blocks."""
        taken = self._fitting(gradients, "gradient")
        self._update(self._kernels[0], taken, scale, learning_rate)

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> Arrays:
        """The first phase of a two-phase rule: return the update direction of each block,
        and update the slots."""
        taken = self._fitting(gradients, "gradient")
        written = self._run(self._kernels[0], taken, scale, 0.0)
        self._directions = written["direction"]
        return self._directions

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        """The second phase: apply the direction of each block, times its trust ratio."""
        assert self._directions is not None, "compute_directions comes first"
        directions = list(self._directions)
        self._update(self._kernels[1], directions, tuple(ratios), learning_rate)
        self._directions = None

    def _update(
        self, kernel: Kernel, taken: list[Any], scale: Any, rate: float
    ) -> None:
        self._values = self._run(kernel, taken, scale, rate)["value"]
        self.step += 1

    def _run(
        self, kernel: Kernel, taken: list[Any], scale: Any, rate: float
    ) -> dict[str, Arrays]:
        """Run a kernel over all blocks; return what it writes, with the slots stored."""
        if isinstance(scale, list | tuple):
            scales = list(scale)
        else:
            scales = [1.0 if scale is None else scale] * len(self.blocks)
        now = self.step + 1, rate, self._real
        by_decay = {
            decays: compute_numbers(kernel, self.hyper, *now, decays=decays)
            for decays in (False, True)
        }
        arrays = {"value": self._values, **self._slots}
        written: dict[str, Arrays] = _run(
            kernel,
            {name: arrays[name] for name in kernel.reads},
            taken,
            scales,
            by_decay,
            decays=tuple(block.decays for block in self.blocks),
        )
        self._slots.update((n, v) for n, v in written.items() if n in self._slots)
        return written

    def _fitting(self, arrays: Sequence[Any], what: str) -> list[Any]:
        return check_fits(self.name, self.blocks, self.dtype, arrays, what)


@partial(jax.jit, static_argnums=0, static_argnames="decays")
def _run(
    kernel: Kernel,
    arrays: Mapping[str, Arrays],
    gradients: list[jax.Array],
    scales: list[Any],
    numbers: Mapping[bool, jax.Array],
    *,
    decays: tuple[bool, ...],
) -> dict[str, Arrays]:
    """What a kernel writes, by array and block, in the dtype of the table."""
    blocks = []
    for i, gradient in enumerate(gradients):
        mine = numbers[decays[i]]
        reads = [arrays[name][i].astype(mine.dtype) for name in kernel.reads]
        scaled = jax.numpy.asarray(scales[i], mine.dtype) * gradient.astype(mine.dtype)
        results = kernel.function(*reads, scaled, *mine)
        blocks.append([result.astype(gradient.dtype) for result in results])
    return dict(zip(kernel.writes, zip(*blocks, strict=True), strict=True))
