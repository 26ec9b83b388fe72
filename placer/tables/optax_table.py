"""A dense table with an optax optimizer: each update is one compiled call.

Values and state are JAX arrays, in host memory or on devices. Updates create new arrays and
never overwrite old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.ops.transformations.functions import BlockFunctions, Leaves
from placer.plan.plan import MEMORY, Table
from placer.plan.settings.training.optimizers import VALUES
from placer.plan.settings.training.transformations import Leaf, Transformation
from placer.tables.block_table import BlockTable, Snapshot

Arrays = tuple[Any, ...]
Put = Callable[[Sequence[Any]], Sequence[Any]]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["own", "shared"],
    meta_fields=["groups"],
)
@dataclass(frozen=True, slots=True)
class _State:
    """The state of the blocks.

    Attributes:
        own: the leaves of each block that are not shared.
        shared: the shared leaves of each group of blocks, such as a count of updates.
        groups: the group of each block. There are several if a checkpoint has parameters
            with different numbers of updates.
    """

    own: list[dict[str, Any]]
    shared: list[dict[str, Any]]
    groups: tuple[int, ...]

    def leaves(self) -> Leaves:
        """Return all leaves of each block."""
        pairs = zip(self.own, self.groups, strict=True)
        return [{**own, **self.shared[group]} for own, group in pairs]


class OptaxTable(BlockTable):
    """A table that an optax optimizer updates.

    The slots of a block are its leaves of the optimizer's state (`Transformation.leaves_of`).
    The state begins when it is first used, with the values that the table has then.

    Args:
        planned: the table in the plan.
        dtype: the dtype of values and gradients.
        initial: the initial values, one array per block, of the block's shape.
        put: copies arrays to the devices of the table.
        described: the optimizer in the plan.
        functions: computes the updates of these blocks.
        wide: whether the precision is float64.

    Attributes:
        block_of_gradient: the number of the block for each gradient, by the gradient's
            name; used by `compensate`.
    """

    def __init__(
        self,
        planned: Table,
        dtype: str,
        initial: Iterable[npt.ArrayLike],
        put: Put,
        described: Transformation,
        functions: BlockFunctions,
        *,
        wide: bool,
    ) -> None:
        super().__init__(planned, dtype)
        self.block_of_gradient = {
            block.gradient: i for i, block in enumerate(self.blocks) if block.gradient
        }
        self._put = put
        self._is_host = planned.devices == MEMORY
        self._wide = wide
        self._types = [
            {leaf.name: leaf for leaf in described.leaves_of(block.parameter)}
            for block in self.blocks
        ]
        self._functions = functions
        self._init = jax.jit(functions.init)
        self._update = jax.jit(self._update_of)
        self._average = functions.averaged and jax.jit(functions.averaged)
        self._shared = [leaf.name for leaf in described.leaves if leaf.kind == "shared"]
        self._state: _State | None = None
        self._publish(self._copied(list(initial)))

    def values(self) -> Arrays:
        """Return the values of the blocks: read-only numpy arrays in host memory."""
        return self._views

    def evaluation_values(self) -> Arrays:
        if self._average is None or not self.blocks:
            return self._views
        with jax.enable_x64(self._wide):
            leaves = self._current().leaves()
            averaged = self._average(self._values, leaves)
        return _host_views(averaged) if self._is_host else tuple(averaged)

    def slots(self) -> dict[str, tuple[Any, ...]]:
        return {
            name: tuple(None if array is None else np.array(array) for array in arrays)
            for name, arrays in self._by_name(range(len(self.blocks))).items()
        }

    def initial_slots(self) -> Mapping[str, tuple[Any, ...]]:
        self._state = None
        return self.slots()

    def load(self, values: Sequence[Any]) -> None:
        self._publish(self._copied(self.check_fits(values, "value")))

    @contextmanager
    def editing(self) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """Yield copies of the values in host memory, and load them at the end."""
        copies = tuple(map(np.array, self._values))
        yield copies
        self._publish(self._copied(copies))

    def load_slots(self, slots: Mapping[str, Sequence[Any]]) -> None:
        names = dict.fromkeys(name for types in self._types for name in types)
        if slots.keys() != names.keys():
            raise RunError(
                f"table {self.name} has the state {_listed(names)}, but the argument has"
                f" {_listed(slots)}"
            )
        where: list[tuple[int, str]] = []
        arrays: list[Any] = []
        for name, of_blocks in slots.items():
            assert len(of_blocks) == len(self.blocks), (self.name, name)
            for index, array in enumerate(of_blocks):
                leaf = self._types[index].get(name)
                if leaf is None and array is None:
                    continue
                self._check_leaf(index, name, leaf, array)
                where.append((index, name))
                arrays.append(array)
        leaves: Leaves = [{} for _ in self.blocks]
        for (index, name), array in zip(where, self._copied(arrays), strict=True):
            leaves[index][name] = array
        counts = [
            tuple(np.asarray(slots[name][i]).tobytes() for name in self._shared)
            for i in range(len(self.blocks))
        ]
        groups = {count: i for i, count in enumerate(dict.fromkeys(counts))}
        self._state = self._state_of(leaves, tuple(groups[count] for count in counts))

    def snapshot(
        self, blocks: Sequence[int], reuse: Snapshot | None = None
    ) -> Snapshot:
        del reuse  # the arrays never change, so no copy is needed
        return {
            VALUES: tuple(self._values[i] for i in blocks),
            **self._by_name(blocks),
        }

    def warm_up(self, sources: int = 1) -> None:
        """Compile an update and the values for evaluations, and drop the results."""
        del sources  # gradients are already summed
        if self.blocks:
            zeros: list[Any] = [
                np.zeros(each.shape, self.dtype) for each in self.blocks
            ]
            if not self._is_host:
                zeros = self._copied(zeros)
            with jax.enable_x64(self._wide):
                state = self._first_state()
                self._update(self._values, state, zeros, self._scales(None), 0.0)
                if self._average is not None:
                    self._average(self._values, state.leaves())

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        """Apply one gradient per block; see `ProgramTable.update`.

        In host memory, the memory of the gradients may be reused when this returns.
        """
        arrays = self.check_fits(gradients, "gradient")
        if self.blocks:
            with jax.enable_x64(self._wide):
                # A Python number does not change the dtype of an update.
                values, self._state = self._update(
                    self._values,
                    self._current(),
                    arrays,
                    self._scales(scale),
                    float(learning_rate),
                )
            if self._is_host:
                jax.block_until_ready(self._state)
            self._publish(values)
        self.step += 1

    def compute_directions(self, gradients: Sequence[Any], *, scale: Any = None) -> Any:
        raise AssertionError("not a two-phase rule")

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        raise AssertionError("not a two-phase rule")

    def _update_of(
        self,
        values: Sequence[jax.Array],
        state: _State,
        gradients: Sequence[jax.Array],
        scales: Sequence[Any],
        rate: Any,
    ) -> tuple[list[jax.Array], _State]:
        compute = self.compute_dtype
        scaled = [
            (jnp.asarray(scale, compute) * gradient.astype(compute)).astype(self.dtype)
            for gradient, scale in zip(gradients, scales, strict=True)
        ]
        new, leaves = self._functions.update(values, state.leaves(), scaled, rate)
        return new, self._state_of(leaves, state.groups)

    def _scales(self, scale: Any) -> list[Any]:
        compute = self.compute_dtype
        return [
            each if isinstance(each, jax.Array) else compute.type(each)
            for each in self.scale_per_block(scale)
        ]

    def _current(self) -> _State:
        """Return the state, which begins when it is first used."""
        if self._state is None:
            with jax.enable_x64(self._wide):
                self._state = self._first_state()
        return self._state

    def _first_state(self) -> _State:
        first = self._state_of(self._init(self._values), (0,) * len(self.blocks))
        # A state that uses no values is on no particular device. An update would be compiled
        # for it, and again for the state that the update returns.
        placed: _State = jax.device_put(first, self._values[0].sharding)
        return placed

    def _state_of(self, leaves: Leaves, groups: tuple[int, ...]) -> _State:
        own = [
            {name: leaf for name, leaf in each.items() if name not in self._shared}
            for each in leaves
        ]
        shared: list[dict[str, Any]] = [{} for _ in range(max(groups, default=-1) + 1)]
        for block, each, group in zip(self.blocks, leaves, groups, strict=True):
            # An update does not change the state of an empty block.
            if block.numel or not shared[group]:
                shared[group] = {name: each[name] for name in self._shared}
        return _State(own, shared, groups)

    def _by_name(self, blocks: Sequence[int]) -> dict[str, tuple[Any, ...]]:
        """Return the leaves of blocks by name; None for a block without the leaf."""
        leaves = self._current().leaves() if self.blocks else []
        names = dict.fromkeys(name for types in self._types for name in types)
        return {name: tuple(leaves[i].get(name) for i in blocks) for name in names}

    def _check_leaf(self, index: int, name: str, leaf: Leaf | None, array: Any) -> None:
        block = self.blocks[index]
        if leaf is None or array is None:
            state = "a" if leaf else "no"
            raise RunError(f"table {self.name}: {block.name} has {state} '{name}'")
        shape = block.shape if leaf.kind == "slot" else leaf.shape
        if array.shape != shape or str(array.dtype) != leaf.dtype:
            raise RunError(
                f"table {self.name}: '{name}' of {block.name} is {array.dtype}"
                f"{list(array.shape)}, but its state is {leaf.dtype}{list(shape)}"
            )

    def _copied(self, arrays: Sequence[Any]) -> list[Any]:
        """Return copies of arrays on the devices of the table."""
        with jax.enable_x64(self._wide):
            return list(self._put([np.array(array) for array in arrays]))

    def _publish(self, values: Sequence[Any]) -> None:
        self._values = list(values)
        self._views = _host_views(values) if self._is_host else tuple(values)


def _host_views(arrays: Sequence[Any]) -> Arrays:
    """Return read-only numpy arrays with the memory of JAX arrays on a CPU."""
    return tuple(map(np.asarray, arrays))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
