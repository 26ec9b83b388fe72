"""A dense table: blocks of parameters in one flat buffer in host memory.

An update is one pass of a kernel over values, slots and gradients, chunk by chunk as
gradients arrive. It is an update in place, or it writes to the second of two buffers
that alternate if readers must not see values change (see `placer.tables.buffers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.config import optimizers
from placer.errors import RunError
from placer.memory import aligned
from placer.tables.block import ParameterBlock, check_fits, check_slots
from placer.tables.buffers import Allocate, ValueBuffers, allocate_private
from placer.tables.initial import initial_values
from placer.tables.rules import Kernel, compute_numbers, kernels_of
from placer.tables.update_pass import Loop, UpdatePass, is_fused

if TYPE_CHECKING:
    import jax

    Gradient = npt.NDArray[Any] | jax.Array
    Scalar = float | npt.NDArray[Any] | np.floating[Any] | jax.Array

Array = npt.NDArray[Any]


class DenseTable:
    """The blocks of one optimizer on one node, with their slots and step count.

    A table is used by one thread at a time. A table without blocks does nothing. Every
    method raises RunError after an update that was interrupted.

    With `in_place`, values are in memory from `allocate`, which is called once and must
    return zeroed, 64-byte aligned bytes; all views of the values see them change, in
    other processes too. Otherwise two private buffers alternate: a view keeps its
    contents for as long as it exists, because a buffer that still has views is replaced
    by a new one. `load` writes values the same way as an update.

    Args:
        name: the table's name, for messages.
        blocks: the blocks, in the order of all sequences below.
        rule: the optimizer rule, one of `placer.config.optimizers`.
        hyper: its hyperparameters; those left out have their defaults.
        dtype: the dtype of values, slots and gradients: a float of 16, 32 or 64 bits.
        seed: the seed of the initial values.
        initializers: the initializer of each parameter, by its name.
        allocate: returns memory for the values if `in_place`.
        in_place: whether updates overwrite the memory that readers see.
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
        allocate: Allocate = allocate_private,
        in_place: bool = False,
    ) -> None:
        self.name = name
        self.blocks = tuple(blocks)
        self.block_of_gradient = {
            block.gradient: i for i, block in enumerate(self.blocks) if block.gradient
        }
        self.rule = rule
        self.dtype = np.dtype(dtype)
        self.step = 0
        # Half floats are computed in float32, and rounded once per update.
        self._compute_dtype = (
            np.dtype("float32") if self.dtype.itemsize == 2 else self.dtype
        )
        self.hyper = optimizers.complete(rule, hyper)
        self._kernels = kernels_of(rule, self.hyper)
        self._loops: dict[tuple[Kernel, int], Loop] = {}
        self._offsets = _offsets(self.blocks, self.dtype)
        self._slots = {
            slot: self._filled(initial)
            for slot, initial in optimizers.slots(rule, self.hyper).items()
        }
        has_two_phases = len(self._kernels) == 2
        self._directions = (
            self._filled(0.0) if has_two_phases else np.empty(0, self.dtype)
        )
        self._has_directions = False
        self._broken = False
        self._buffers = ValueBuffers(self._offsets[-1], self.dtype, allocate, in_place)
        flat = self._buffers.current
        for block, view in zip(self.blocks, self._views(flat), strict=True):
            view[...] = block.initial_values(initializers, seed, dtype)
        self._publish(flat)

    def values(self) -> tuple[Array, ...]:
        """Return the values of the blocks: read-only, 64-byte aligned views of one flat
        buffer, each of its block's shape."""
        self._check_usable()
        return self._values

    def slots(self) -> dict[str, tuple[Array, ...]]:
        """Return copies of the optimizer's state: for each slot, one array per
        block."""
        self._check_usable()
        return {slot: self._views(flat.copy()) for slot, flat in self._slots.items()}

    def load(self, values: Sequence[Array]) -> None:
        """Replace the values by `values`, one array per block.

        Slots and step count stay as they are. Raises RunError for arrays that do not
        fit the blocks.
        """
        self._check_usable()
        arrays = self._check_fits(values, "value")
        flat = self._buffers.write_target()
        for view, array in zip(self._views(flat), arrays, strict=True):
            view[...] = array
        self._publish(flat)

    def load_slots(self, slots: Mapping[str, Sequence[Array]]) -> None:
        """Replace the optimizer's state by `slots`, of the form that `slots` returns.

        Values and step count stay as they are. Raises RunError for other slots or for
        arrays that do not fit the blocks.
        """
        self._check_usable()
        check_slots(self.name, self._slots, slots)
        state = {slot: self._check_fits(arrays, slot) for slot, arrays in slots.items()}
        for slot, arrays in state.items():
            for view, array in zip(self._views(self._slots[slot]), arrays, strict=True):
                view[...] = array

    def warm_up(self, sources: int = 1) -> None:
        """Compile the kernels of an update by gradients of `sources` workers, so that
        the first update is as fast as the others."""
        if self.blocks:
            summed = (
                sources if is_fused(sources, self.dtype, self._compute_dtype) else 1
            )
            self._loop(self._kernels[0], summed)
            for kernel in self._kernels[1:]:
                self._loop(kernel, 1)

    def update(
        self,
        gradients: Sequence[Gradient],
        *,
        learning_rate: float,
        scale: Scalar | Sequence[Scalar] | None = None,
    ) -> None:
        """Apply one gradient per block.

        When this returns, the new values are current, and the memory of the gradients
        may be reused.

        Args:
            gradients: one array per block, of its shape and of the table's dtype.
            learning_rate: the learning rate of this update.
            scale: a factor of the gradients, such as that of clipping: one for all, or
                one per block.

        Raises:
            RunError: for gradients that do not fit the blocks.
        """
        arrays = self._check_fits(gradients, "gradient")
        with self.update_in_chunks(
            learning_rate=learning_rate, scale=scale
        ) as update_pass:
            _apply_all(update_pass, arrays)

    @contextmanager
    def update_in_chunks(
        self,
        *,
        learning_rate: float,
        scale: Scalar | Sequence[Scalar] | None = None,
    ) -> Iterator[UpdatePass]:
        """Update by gradients that arrive in chunks, in the body of a `with` statement.

        The body calls `UpdatePass.apply` for all elements of each block, from the first
        to the last. The new values are current when the body ends. If it raises, some
        elements are updated and others are not, and the table cannot be used any more.
        """
        assert len(self._kernels) == 1, "a two-phase rule takes two passes"
        with self._write_values(learning_rate, scale) as update_pass:
            yield update_pass

    def compute_directions(
        self,
        gradients: Sequence[Gradient],
        *,
        scale: Scalar | Sequence[Scalar] | None = None,
    ) -> tuple[Array, ...]:
        """Compute the update direction of each block: the first phase of a two-phase
        rule.

        This updates slots, but no values; `apply_directions` does that. Returns
        read-only views that the next call overwrites. Arguments and errors are those of
        `update`.
        """
        arrays = self._check_fits(gradients, "gradient")
        with self.compute_directions_in_chunks(scale=scale) as update_pass:
            _apply_all(update_pass, arrays)
        return self.directions()

    @contextmanager
    def compute_directions_in_chunks(
        self, *, scale: Scalar | Sequence[Scalar] | None = None
    ) -> Iterator[UpdatePass]:
        """Compute update directions from gradients that arrive in chunks, as
        `update_in_chunks` does for updates."""
        assert len(self._kernels) == 2, "not a two-phase rule"
        assert not self._has_directions, "apply_directions comes first"
        with self._pass(
            self._kernels[0], self._buffers.current, 0.0, scale
        ) as update_pass:
            yield update_pass
        self._has_directions = True

    def directions(self) -> tuple[Array, ...]:
        """Return the update directions that were computed last, one array per block."""
        self._check_usable()
        assert self._has_directions, "compute_directions comes first"
        return _read_only(self._views(self._directions))

    def apply_directions(
        self, ratios: Sequence[Scalar], *, learning_rate: float
    ) -> None:
        """Apply the update directions: the second phase of a two-phase rule.

        `ratios` has the trust ratio of each block's parameter (the op `trust_ratio`).
        """
        assert self._has_directions, "compute_directions comes first"
        with self._write_values(learning_rate, tuple(ratios)) as update_pass:
            _apply_all(update_pass, self._views(self._directions))
        self._has_directions = False

    @contextmanager
    def _write_values(
        self, rate: float, scale: Scalar | Sequence[Scalar] | None
    ) -> Iterator[UpdatePass]:
        # Only this phase writes values. They become current, and the step counts, after
        # the last element: until then readers of two alternating buffers see the step
        # before, and an interrupted update is not counted.
        flat = self._buffers.write_target()
        with self._pass(self._kernels[-1], flat, rate, scale) as update_pass:
            yield update_pass
        self._publish(flat)
        self.step += 1

    @contextmanager
    def _pass(
        self,
        kernel: Kernel,
        values: Array,
        rate: float,
        scale: Scalar | Sequence[Scalar] | None,
    ) -> Iterator[UpdatePass]:
        self._check_usable()
        arrays = {"value": values, "direction": self._directions, **self._slots}
        update_pass = UpdatePass(
            self.name,
            self.blocks,
            self._offsets,
            [arrays[name] for name in kernel.arrays],
            None if values is self._buffers.current else self._buffers.current,
            self._coefficients(kernel, rate, scale),
            partial(self._loop, kernel),
            self._compute_dtype,
        )
        try:
            yield update_pass
            update_pass.check_complete()
        except BaseException:
            self._broken = True
            raise
        finally:
            update_pass.release()

    def _coefficients(
        self, kernel: Kernel, rate: float, scale: Scalar | Sequence[Scalar] | None
    ) -> list[tuple[Any, ...]]:
        """Return the scale of the gradients and the kernel's numbers for each block."""
        if isinstance(scale, list | tuple):
            scales = scale
        else:
            scales = [1.0 if scale is None else scale] * len(self.blocks)
        assert len(scales) == len(self.blocks), (self.name, len(scales))
        dtype = self._compute_dtype
        context = kernel, self.hyper, self.step + 1, rate, dtype
        numbers = {
            decays: tuple(compute_numbers(*context, decays=decays))
            for decays in {block.decays for block in self.blocks}
        }
        return [
            (np.asarray(scale).astype(dtype)[()], *numbers[block.decays])
            for scale, block in zip(scales, self.blocks, strict=True)
        ]

    def _loop(self, kernel: Kernel, sources: int) -> Loop:
        loop = self._loops.get((kernel, sources))
        if loop is None:
            from placer.tables.compiled_kernels import compile_kernel

            loop = compile_kernel(kernel, sources, self._compute_dtype.name)
            self._loops[kernel, sources] = loop
        return loop

    def _publish(self, flat: Array) -> None:
        self._buffers.publish(flat)
        self._values = _read_only(self._views(flat))

    def _filled(self, value: float) -> Array:
        flat = aligned.empty((self._offsets[-1],), self.dtype)
        flat.fill(value)
        return flat

    def _views(self, flat: Array) -> tuple[Array, ...]:
        return tuple(
            flat[offset : offset + block.size].reshape(block.shape)
            for offset, block in zip(self._offsets, self.blocks, strict=False)
        )

    def _check_fits(self, arrays: Sequence[Gradient], noun: str) -> list[Array]:
        """Return the arrays as numpy arrays; RunError unless they fit the blocks."""
        checked = check_fits(self.name, self.blocks, self.dtype, arrays, noun)
        return [np.asarray(array) for array in checked]

    def _check_usable(self) -> None:
        if self._broken:
            raise RunError(
                f"table {self.name}: an update was interrupted, and its values are no"
                " longer of one step",
                hint="start again from saved parameters",
            )


def _apply_all(update_pass: UpdatePass, arrays: Sequence[Array]) -> None:
    for block, array in enumerate(arrays):
        update_pass.apply(block, 0, (array.reshape(-1),))


def _read_only(views: tuple[Array, ...]) -> tuple[Array, ...]:
    for view in views:
        view.flags.writeable = False
    return views


def _offsets(blocks: Sequence[ParameterBlock], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the offset of each block in a flat array, then the array's length."""
    offsets = [0]
    for block in blocks:
        offsets.append(offsets[-1] + aligned.pad_length(block.size, dtype))
    return tuple(offsets)
