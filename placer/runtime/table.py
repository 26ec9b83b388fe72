"""A dense table: blocks of parameters in one flat buffer, updated by one kernel.

The buffer is never changed in place: an update makes a new one, so a view given out
before stays what it was. JAX is imported when the first update is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from placer import aligned
from placer.errors import RunError
from placer.graph.optimizers import complete, find
from placer.runtime import initial

if TYPE_CHECKING:
    import jax

    Gradient = np.ndarray | jax.Array


@dataclass(frozen=True, slots=True)
class Block:
    """Elements [start, stop) of a parameter flattened in C order.

    `name` is the parameter's name where it is whole, else `h1.w.block0`; `shape` is
    the block as programs see it: flat where the parameter is cut.
    """

    parameter: str
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    parameter_shape: tuple[int, ...]


class Table:
    """Blocks of one optimizer group on one node, with their slots and step count.

    Used by one thread at a time; float64 needs `jax.enable_x64(True)` around `warm`
    and `update`. A table without blocks does nothing.
    """

    def __init__(
        self,
        name: str,
        blocks: Sequence[Block],
        rule: str,
        hyper: Mapping[str, float],
        *,
        dtype: str,
        seed: int,
        inits: Mapping[str, initial.Init],
    ) -> None:
        self.name = name
        self.blocks = tuple(blocks)
        self.dtype = np.dtype(dtype)
        self.step = 0
        self._rule = (rule, tuple(sorted(complete(rule, hyper).items())))
        self._slot_names = find(rule).slots
        self._offsets = _offsets(self.blocks, self.dtype)
        self._slots: tuple[Any, ...] | None = None  # jax arrays once there are any
        self._gradient = aligned.zeros((self._offsets[-1],), self.dtype)
        flat = aligned.zeros((self._offsets[-1],), self.dtype)
        for block, view in zip(self.blocks, self._views(flat), strict=True):
            view[...] = initial.values(
                inits[block.parameter],
                seed=seed,
                name=block.parameter,
                shape=block.parameter_shape,
                start=block.start,
                stop=block.stop,
                dtype=dtype,
            ).reshape(block.shape)
        self._put(flat)

    def values(self) -> tuple[np.ndarray, ...]:
        """The blocks' values: read-only, 64-byte aligned views of one flat buffer.

        A view keeps its values: later updates and loads write elsewhere.
        """
        return self._values

    def slots(self) -> dict[str, tuple[np.ndarray, ...]]:
        """Copies of the optimizer's state: for each slot one array per block."""
        if self._slots is None:
            flat = [np.zeros_like(self._flat) for _ in self._slot_names]
        else:
            flat = [np.array(slot) for slot in self._slots]
        return {
            slot: self._views(array)
            for slot, array in zip(self._slot_names, flat, strict=True)
        }

    def load(self, values: Sequence[np.ndarray]) -> None:
        """Take these values, one array per block; slots and step stay as they are."""
        flat = aligned.zeros(self._flat.shape, self.dtype)
        self._gather(values, flat, "value")
        self._put(flat)

    def warm(self) -> None:
        """Compile the update, so that the first one is as quick as the others."""
        if not self.blocks:
            return
        zero = self.dtype.type(0)
        flat, _ = _apply(*self._rule)(
            self._flat, self._zero_slots(), self._gradient, np.int32(0), zero, zero
        )
        flat.block_until_ready()

    def update(
        self,
        gradients: Sequence[Gradient],
        *,
        learning_rate: float,
        scale: float | np.ndarray | jax.Array | None = None,
    ) -> None:
        """Apply one gradient per block, each multiplied by `scale` (as clipping asks).

        Returns when the new values stand; the gradients' memory is free again then.
        RunError for gradients that do not fit the blocks.
        """
        self._gather(gradients, self._gradient, "gradient")
        if self.blocks:
            if self._slots is None:
                self._slots = self._zero_slots()
            flat, self._slots = _apply(*self._rule)(
                self._flat,
                self._slots,
                self._gradient,
                np.int32(self.step),
                self.dtype.type(learning_rate),
                self.dtype.type(1 if scale is None else scale),
            )
            self._put(np.asarray(flat))
        self.step += 1

    def _put(self, flat: np.ndarray) -> None:
        if not aligned.is_aligned(flat):  # as from a GPU; XLA's own CPU buffers are
            copy = aligned.empty(flat.shape, flat.dtype)
            copy[...] = flat
            flat = copy
        flat.flags.writeable = False
        self._flat = flat
        self._values = self._views(flat)

    def _views(self, flat: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(
            flat[offset : offset + block.stop - block.start].reshape(block.shape)
            for offset, block in zip(self._offsets, self.blocks, strict=False)
        )

    def _gather(self, arrays: Sequence[Gradient], flat: np.ndarray, what: str) -> None:
        """Copy one array per block into a flat buffer; the padding is not touched."""
        if len(arrays) != len(self.blocks):
            raise RunError(
                f"table {self.name}: {len(arrays)} {what}s for {len(self.blocks)} blocks"
            )
        for block, view, array in zip(
            self.blocks, self._views(flat), arrays, strict=True
        ):
            if array.shape != block.shape or array.dtype != self.dtype:
                raise RunError(
                    f"table {self.name}: {what} of {block.name} is"
                    f" {array.dtype}{list(array.shape)},"
                    f" the block is {self.dtype}{list(block.shape)}"
                )
            view[...] = np.asarray(array)

    def _zero_slots(self) -> tuple[Any, ...]:
        import jax.numpy as jnp

        # Without x64 JAX would cut the values to float32 and say nothing.
        assert self.dtype != np.float64 or jnp.result_type(float) == np.float64, (
            f"table {self.name} holds float64: enter jax.enable_x64(True) first"
        )
        return tuple(jnp.zeros(self._flat.shape, self.dtype) for _ in self._slot_names)


def _offsets(blocks: Sequence[Block], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Where each block begins in the flat buffer, and at the end its length."""
    offsets = [0]
    for block in blocks:
        offsets.append(offsets[-1] + aligned.padded(block.stop - block.start, dtype))
    return tuple(offsets)


@cache
def _apply(rule: str, hyper: tuple[tuple[str, float], ...]) -> Callable[..., Any]:
    """The jitted update of a rule, compiled once per buffer length and dtype.

    The slots are donated. The values are not: somebody may hold a view of them.
    """
    import jax

    from placer.runtime import rules

    update = rules.rule(rule, dict(hyper))

    def apply(
        values: jax.Array,
        slots: rules.Slots,
        gradients: jax.Array,
        step: jax.Array,
        learning_rate: jax.Array,
        scale: jax.Array,
    ) -> tuple[jax.Array, rules.Slots]:
        return update(values, scale * gradients, slots, step, learning_rate)

    return jax.jit(apply, donate_argnums=1)
