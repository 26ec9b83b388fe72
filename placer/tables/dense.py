"""A dense table: blocks of parameters in one flat buffer in host memory.

An update is one pass of a kernel over values, slots and gradients, chunk by chunk as
gradients arrive. It overwrites the values. If readers must not see values change, it writes
to the second of two alternating buffers instead (see `placer.tables.buffers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.plan.plan import Table
from placer.plan.settings.training.optimizers import VALUES
from placer.plan.settings.training.slicing import Block
from placer.system.memory import aligned
from placer.tables.apply_gradients import Loop, UpdatePass, is_fused
from placer.tables.block_table import Snapshot
from placer.tables.buffers import Allocate, ValueBuffers, allocate_private
from placer.tables.optimizer_rules import Kernel, arrays_of, record_of_numbers
from placer.tables.rule_table import RuleTable

Array = npt.NDArray[Any]


class DenseTable(RuleTable):
    """A table in host memory.

    After an interrupted update, every method raises RunError.

    With `planned.in_place`, all views of the values see updates, also in other processes.
    Otherwise two private buffers alternate, and a view keeps its contents while it exists:
    a buffer with views is replaced by a new one. `load` writes values like an update.

    Args:
        planned: the table in the plan.
        dtype: the dtype of values, slots and gradients.
        initial: the initial values, one array per block, of the block's shape.
        allocate: returns memory for a table that is updated in place. It is called once,
            and must return zeroed, 64-byte aligned bytes.
    """

    def __init__(
        self,
        planned: Table,
        dtype: str,
        initial: Iterable[Array],
        allocate: Allocate = allocate_private,
    ) -> None:
        super().__init__(planned, dtype)
        self._record = record_of_numbers(self.compute_dtype)
        self._loops: dict[tuple[Kernel, bool, int], Loop] = {}
        self._offsets = _offsets(self.blocks, self.dtype)
        self._slots = {
            slot: self._filled(start) for slot, start in self.rule.first_slots.items()
        }
        has_two_phases = len(self.kernels) == 2
        self._directions = (
            self._filled(0.0) if has_two_phases else np.empty(0, self.dtype)
        )
        self._has_directions = False
        self._broken = False
        self._in_place = planned.in_place
        self._buffers = ValueBuffers(
            self._offsets[-1], self.dtype, allocate, planned.in_place
        )
        flat = self._buffers.current
        for view, array in zip(self._views(flat), initial, strict=True):
            view[...] = array
        self._publish(flat)

    def values(self) -> tuple[Array, ...]:
        """Return the values of the blocks: read-only, 64-byte aligned views of the flat buffer."""
        self._check_usable()
        return self._values

    def slots(self) -> dict[str, tuple[Array, ...]]:
        self._check_usable()
        return {slot: self._views(flat.copy()) for slot, flat in self._slots.items()}

    def load(self, values: Sequence[Any]) -> None:
        self._check_usable()
        arrays = self.check_fits(values, "value")
        flat = self._buffers.write_target()
        with self._overwriting(flat):
            for view, array in zip(self._views(flat), arrays, strict=True):
                view[...] = array
        self._publish(flat)

    @contextmanager
    def editing(self) -> Iterator[tuple[Array, ...]]:
        """Yield the values of the blocks as writable arrays, as `BlockTable.editing`.

        If the body raises, the old values are restored. A table that is updated in place
        becomes unusable instead.
        """
        self._check_usable()
        flat = self._buffers.write_target()
        if flat is not self._buffers.current:
            np.copyto(flat, self._buffers.current)
        with self._overwriting(flat):
            yield self._views(flat)
        self._publish(flat)

    def load_slots(self, slots: Mapping[str, Sequence[Any]]) -> None:
        self._check_usable()
        for slot, arrays in self.check_slots(slots).items():
            flat = self._slots[slot]
            with self._overwriting(flat):
                for view, array in zip(self._views(flat), arrays, strict=True):
                    view[...] = array

    def snapshot(
        self, blocks: Sequence[int], reuse: Snapshot | None = None
    ) -> Snapshot:
        self._check_usable()
        arrays = {VALUES: self._buffers.current, **self._slots}
        taken: Snapshot = {}
        for name, flat in arrays.items():
            views = self._views(flat)
            copies = (
                [np.empty_like(views[i]) for i in blocks]
                if reuse is None
                else reuse[name]
            )
            for i, copy in zip(blocks, copies, strict=True):
                np.copyto(copy, views[i])
            taken[name] = tuple(copies)
        return taken

    def warm_up(self, sources: int = 1) -> None:
        if self.blocks:
            # The gradients of a two-phase rule are already summed.
            fused = len(self.kernels) == 1 and is_fused(
                sources, self.dtype, self.compute_dtype
            )
            for kernel in self.kernels:
                in_place = self._in_place and kernel is self.kernels[-1]
                self._loop(kernel, in_place, sources if fused else 1)

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        """Apply one gradient per block; see `ProgramTable.update`.

        When this returns, the new values are current and the memory of the gradients may be
        reused.
        """
        arrays = self.check_fits(gradients, "gradient")
        with self.update_in_chunks(
            learning_rate=learning_rate, scale=scale
        ) as update_pass:
            _apply_all(update_pass, arrays)

    def update_in_chunks(
        self, *, learning_rate: float, scale: Any = None
    ) -> AbstractContextManager[UpdatePass]:
        """Return a context manager for an update with gradients that arrive in chunks.

        The body must call `UpdatePass.apply` for all elements of each block, in order. The
        new values become current when the body ends. If the body raises, the table is
        partly updated and becomes unusable.
        """
        assert len(self.kernels) == 1, "a two-phase rule needs two passes"
        return self._write_values(learning_rate, scale)

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> tuple[Array, ...]:
        """Compute update directions; see `ProgramTable.compute_directions`.

        Returns:
            Read-only views that the next call overwrites.
        """
        assert len(self.kernels) == 2, "not a two-phase rule"
        assert not self._has_directions, "apply_directions comes first"
        arrays = self.check_fits(gradients, "gradient")
        with self._pass(self.kernels[0], self._directions, 0.0, scale) as update_pass:
            _apply_all(update_pass, arrays)
        self._has_directions = True
        return _read_only(self._views(self._directions))

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        assert self._has_directions, "compute_directions comes first"
        with self._write_values(learning_rate, tuple(ratios)) as update_pass:
            _apply_all(update_pass, self._views(self._directions))
        self._has_directions = False

    @contextmanager
    def _write_values(self, rate: float, scale: Any) -> Iterator[UpdatePass]:
        # Publish and count the step only after the last element. Until then, readers of
        # alternating buffers see the previous step, and an interrupted update is not counted.
        flat = self._buffers.write_target()
        with self._pass(self.kernels[-1], flat, rate, scale) as update_pass:
            yield update_pass
        self._publish(flat)
        self.step += 1

    @contextmanager
    def _pass(
        self, kernel: Kernel, target: Array, rate: float, scale: Any
    ) -> Iterator[UpdatePass]:
        self._check_usable()
        current, arrays = self._buffers.current, {"value": target, **self._slots}
        in_place = target is current
        update_pass = UpdatePass(
            self.name,
            self.blocks,
            self._offsets,
            [arrays[name] for name in arrays_of(kernel)],
            () if in_place else (current,),
            self._coefficients(rate, scale),
            partial(self._loop, kernel, in_place),
            self.compute_dtype,
        )
        try:
            yield update_pass
            update_pass.check_complete()
        except BaseException:
            self._broken = True
            raise
        finally:
            update_pass.release()

    @contextmanager
    def _overwriting(self, flat: Array) -> Iterator[None]:
        """Make the table unusable if the body raises and `flat` is in use."""
        try:
            yield
        except BaseException:
            used = (self._buffers.current, *self._slots.values())
            self._broken |= any(flat is each for each in used)
            raise

    def _coefficients(self, rate: float, scale: Any) -> list[tuple[Any, Array]]:
        numbers, indices = self.next_numbers(rate)
        records = [each.view(self._record) for each in numbers]
        return [
            (self.compute_dtype.type(each), records[index])
            for each, index in zip(self.scale_per_block(scale), indices, strict=True)
        ]

    def _loop(self, kernel: Kernel, in_place: bool, sources: int) -> Loop:
        key = kernel, in_place, sources
        loop = self._loops.get(key)
        if loop is None:
            from placer.tables.compiled_kernels import compile_kernel

            loop = compile_kernel(*key, self.compute_dtype.name)
            self._loops[key] = loop
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
            flat[offset : offset + block.numel].reshape(block.shape)
            for offset, block in zip(self._offsets, self.blocks, strict=False)
        )

    def _check_usable(self) -> None:
        if self._broken:
            raise RunError(
                f"table {self.name}: an update was interrupted, so only some values were"
                " updated",
                hint="start again from saved parameters",
            )


def _apply_all(update_pass: UpdatePass, arrays: Sequence[Any]) -> None:
    for block, array in enumerate(arrays):
        update_pass.apply(block, 0, (np.asarray(array).reshape(-1),))


def _read_only(views: tuple[Array, ...]) -> tuple[Array, ...]:
    for view in views:
        view.flags.writeable = False
    return views


def _offsets(blocks: Sequence[Block], dtype: np.dtype[Any]) -> tuple[int, ...]:
    lengths = (aligned.pad_length(block.numel, dtype) for block in blocks)
    return tuple(accumulate(lengths, initial=0))
