"""A dense table: blocks of parameters in one flat buffer, updated where they lie.

A rule's kernel goes over values, slots and gradients once, in chunks as these come in.
Where readers may not see values change, the table keeps two buffers by turns.
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
from placer.tables.block import Block, fitting
from placer.tables.buffers import Allocate, Memory, private
from placer.tables.initial import initial_values
from placer.tables.rules import Moment, Stage, stages
from placer.tables.update_pass import Kernel, Pass, fused

if TYPE_CHECKING:
    import jax

    Gradient = npt.NDArray[Any] | jax.Array
    Scalar = float | npt.NDArray[Any] | np.floating[Any] | jax.Array

Array = npt.NDArray[Any]


class Table:
    """Blocks of one optimizer group on one node, with their slots and step count.

    Used by one thread at a time. A table without blocks does nothing. RunError from
    every method after an update that was broken off.

    With `in_place` the values lie in memory of `allocate`, which is asked once for so
    many bytes, zero and 64-byte aligned; whoever has a view of them sees them change,
    in another process too. Else there are two buffers of this process by turns: a view
    stays what it was for as long as it lives, for a buffer that somebody looks at is
    given up for a new one. `load` writes as an update does.
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
        inits: Mapping[str, initial_values.Init],
        allocate: Allocate = private,
        in_place: bool = False,
    ) -> None:
        self.name = name
        self.blocks = tuple(blocks)
        self.takes = {
            block.gradient: i for i, block in enumerate(self.blocks) if block.gradient
        }
        self.rule = rule
        self.dtype = np.dtype(dtype)
        self.step = 0
        # Halves are computed in float32 and rounded once an update.
        self._real = np.dtype("float32") if self.dtype.itemsize == 2 else self.dtype
        self.hyper = optimizers.complete(rule, hyper)
        self._stages = stages(rule, self.hyper)
        self._kernels: dict[tuple[str, int], Kernel] = {}
        self._offsets = _offsets(self.blocks, self.dtype)
        self._slots = {
            slot: self._private(begin)
            for slot, begin in optimizers.slots(rule, self.hyper).items()
        }
        two = len(self._stages) == 2
        self._direction = self._private(0.0) if two else np.empty(0, self.dtype)
        self._directed = False
        self._broken = False
        self._memory = Memory(self._offsets[-1], self.dtype, allocate, in_place)
        flat = self._memory.now
        for block, view in zip(self.blocks, self._views(flat), strict=True):
            view[...] = block.initial(inits, seed, dtype)
        self._publish(flat)

    def values(self) -> tuple[Array, ...]:
        """The blocks' values: read-only, 64-byte aligned views of one flat buffer."""
        self._check_whole()
        return self._values

    def slots(self) -> dict[str, tuple[Array, ...]]:
        """Copies of the optimizer's state: for each slot one array per block."""
        self._check_whole()
        return {slot: self._views(flat.copy()) for slot, flat in self._slots.items()}

    def load(self, values: Sequence[Array]) -> None:
        """Take these values, one array per block; slots and step stay as they are."""
        self._check_whole()
        found = self._fitting(values, "value")
        flat = self._memory.target()
        for view, array in zip(self._views(flat), found, strict=True):
            view[...] = array
        self._publish(flat)

    def load_slots(self, slots: Mapping[str, Sequence[Array]]) -> None:
        """Take this state, as `slots` gives it; values and step stay as they are."""
        self._check_whole()
        if slots.keys() != self._slots.keys():
            raise RunError(
                f"table {self.name} keeps {_listed(self._slots)}, {_listed(slots)} given"
            )
        found = {slot: self._fitting(arrays, slot) for slot, arrays in slots.items()}
        for slot, arrays in found.items():
            for view, array in zip(self._views(self._slots[slot]), arrays, strict=True):
                view[...] = array

    def warm(self, sources: int = 1) -> None:
        """Compile what an update of gradients from so many workers needs, so that the
        first one is as quick as the others."""
        if self.blocks:
            taken = sources if fused(sources, self.dtype, self._real) else 1
            self._kernel(self._stages[0], taken)
            for stage in self._stages[1:]:
                self._kernel(stage, 1)

    def update(
        self,
        gradients: Sequence[Gradient],
        *,
        learning_rate: float,
        scale: Scalar | Sequence[Scalar] | None = None,
    ) -> None:
        """Apply one gradient per block, each multiplied by `scale` (as clipping asks):
        one for all, or one per block.

        Returns when the new values stand; the gradients' memory is free again then.
        RunError for gradients that do not fit the blocks.
        """
        found = self._fitting(gradients, "gradient")
        with self.updating(learning_rate=learning_rate, scale=scale) as each:
            _apply_all(each, found)

    @contextmanager
    def updating(
        self,
        *,
        learning_rate: float,
        scale: Scalar | Sequence[Scalar] | None = None,
    ) -> Iterator[Pass]:
        """An update in chunks: `apply` each block's elements, from its first to its
        last, and the new values stand when the block of code ends.

        If it ends by an error the table is of no use any more.
        """
        assert len(self._stages) == 1, "a rule with a direction takes two passes"
        with self._changing_values(learning_rate, scale) as each:
            yield each

    def direct(
        self,
        gradients: Sequence[Gradient],
        *,
        scale: Scalar | Sequence[Scalar] | None = None,
    ) -> tuple[Array, ...]:
        """The first stage of a rule with a direction: that of each block, for `update_by`
        to follow. Read-only views; the next `direct` writes over them.

        Slots are updated, values are not. Errors are those of `update`.
        """
        found = self._fitting(gradients, "gradient")
        with self.directing(scale=scale) as each:
            _apply_all(each, found)
        return self.directions()

    @contextmanager
    def directing(
        self, *, scale: Scalar | Sequence[Scalar] | None = None
    ) -> Iterator[Pass]:
        """The first stage in chunks, as `updating`."""
        assert len(self._stages) == 2, "the rule has no direction"
        assert not self._directed, "update_by comes first"
        with self._pass(self._stages[0], self._memory.now, 0.0, scale) as each:
            yield each
        self._directed = True

    def directions(self) -> tuple[Array, ...]:
        """What the first stage has made: one array per block."""
        self._check_whole()
        assert self._directed, "direct comes first"
        return _read_only(self._views(self._direction))

    def update_by(self, ratios: Sequence[Scalar], *, learning_rate: float) -> None:
        """The second stage: follow each block's direction by the trust ratio of its
        parameter (the op `trust_ratio`), one per block."""
        assert self._directed, "direct comes first"
        with self._changing_values(learning_rate, tuple(ratios)) as each:
            _apply_all(each, self._views(self._direction))
        self._directed = False

    @contextmanager
    def _changing_values(
        self, rate: float, scale: Scalar | Sequence[Scalar] | None
    ) -> Iterator[Pass]:
        flat = self._memory.target()
        with self._pass(self._stages[-1], flat, rate, scale) as each:
            yield each
        self._publish(flat)
        self.step += 1

    @contextmanager
    def _pass(
        self,
        stage: Stage,
        values: Array,
        rate: float,
        scale: Scalar | Sequence[Scalar] | None,
    ) -> Iterator[Pass]:
        self._check_whole()
        held = {"values": values, "direction": self._direction, **self._slots}
        each = Pass(
            self.name,
            self.blocks,
            self._offsets,
            [held[array] for array in stage.arrays],
            None if values is self._memory.now else self._memory.now,
            self._numbers(stage, rate, scale),
            partial(self._kernel, stage),
            self._real,
        )
        try:
            yield each
            each.check_complete()
        except BaseException:
            self._broken = True
            raise
        finally:
            each.close()

    def _numbers(
        self, stage: Stage, rate: float, scale: Scalar | Sequence[Scalar] | None
    ) -> list[tuple[Any, ...]]:
        """What the kernel is given for each block beside arrays: the scale and more."""
        if isinstance(scale, list | tuple):
            factors = scale
        else:
            factors = [1.0 if scale is None else scale] * len(self.blocks)
        assert len(factors) == len(self.blocks), (self.name, len(factors))
        others = {
            decays: self._rounded(stage.numbers(self.hyper, self._now(rate, decays)))
            for decays in {block.decays for block in self.blocks}
        }
        return [
            (*self._rounded([factor]), *others[block.decays])
            for factor, block in zip(factors, self.blocks, strict=True)
        ]

    def _now(self, rate: float, decays: bool) -> Moment:
        decay = self.hyper.get("weight_decay", 0.0) if decays else 0.0
        return Moment(self.step + 1, rate, decay, self._real.type)

    def _rounded(self, numbers: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(np.asarray(number).astype(self._real)[()] for number in numbers)

    def _kernel(self, stage: Stage, sources: int) -> Kernel:
        found = self._kernels.get((stage.kernel, sources))
        if found is None:
            from placer.tables.compiled_kernels import compiled

            numbers = 1 + len(stage.numbers(self.hyper, self._now(0.0, True)))
            found = compiled(
                stage.kernel, len(stage.arrays), sources, numbers, self._real.name
            )
            self._kernels[stage.kernel, sources] = found
        return found

    def _publish(self, flat: Array) -> None:
        self._memory.publish(flat)
        self._values = _read_only(self._views(flat))

    def _private(self, value: float) -> Array:
        flat = aligned.empty((self._offsets[-1],), self.dtype)
        flat.fill(value)
        return flat

    def _views(self, flat: Array) -> tuple[Array, ...]:
        return tuple(
            flat[offset : offset + block.size].reshape(block.shape)
            for offset, block in zip(self._offsets, self.blocks, strict=False)
        )

    def _fitting(self, arrays: Sequence[Gradient], what: str) -> list[Array]:
        """The arrays as numpy's, one per block; RunError where they are not."""
        found = fitting(self.name, self.blocks, self.dtype, arrays, what)
        return [np.asarray(array) for array in found]

    def _check_whole(self) -> None:
        if self._broken:
            raise RunError(
                f"table {self.name}: an update was broken off, and its values are no"
                " longer of one step",
                hint="begin again from saved parameters",
            )


def _apply_all(each: Pass, arrays: Sequence[Array]) -> None:
    for block, array in enumerate(arrays):
        each.apply(block, 0, (array.reshape(-1),))


def _read_only(views: tuple[Array, ...]) -> tuple[Array, ...]:
    for view in views:
        view.flags.writeable = False
    return views


def _offsets(blocks: Sequence[Block], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Where each block begins in a flat array, and at the end the array's length."""
    offsets = [0]
    for block in blocks:
        offsets.append(offsets[-1] + aligned.padded(block.size, dtype))
    return tuple(offsets)


def _listed(slots: Mapping[str, object]) -> str:
    return " and ".join(slots) if slots else "no state"
