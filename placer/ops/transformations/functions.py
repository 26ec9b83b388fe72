"""Computes the updates of the blocks of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp

from placer.errors import PlacerError
from placer.ops.functions.fingerprint import is_same_fingerprint
from placer.ops.transformations.compare import Shape
from placer.ops.transformations.config import Make
from placer.ops.transformations.cut import units_of_blocks
from placer.ops.transformations.describe import fingerprint, trace_without_clip
from placer.ops.transformations.ownership import find_owners
from placer.ops.transformations.trace import Types
from placer.ops.transformations.units import Unit, make_unit
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.transformations import (
    Transformation,
    shape_on_block,
)

Leaves = list[dict[str, Any]]
"""The state of each block: its leaves by name."""


@dataclass(frozen=True, slots=True)
class BlockFunctions:
    """The functions of a table's blocks; JAX can trace each of them.

    Values and gradients are one array per block. A parameter has a copy of its `own`
    leaves and of the `shared` leaves with each block.

    Attributes:
        init: returns the first leaves for values.
        update: returns the new values and leaves for (values, leaves, gradients, rate).
        averaged: returns the values for evaluations, for (values, leaves); None without
            such a function.
    """

    init: Callable[[Sequence[Any]], Leaves]
    update: Callable[
        [Sequence[Any], Leaves, Sequence[Any], Any], tuple[list[Any], Leaves]
    ]
    averaged: Callable[[Sequence[Any], Leaves], list[Any]] | None


@dataclass(frozen=True, slots=True)
class _BlockUnit:
    """A unit on the blocks of a table.

    Attributes:
        blocks: the number of the block of each of its parameters.
        shapes: the shapes that the optimizer sees for them.
        leaves: for each leaf, its name, and the number of its block; None for all blocks.
        slots: for each leaf, the shapes of its block in the table and for the optimizer if
            it is a slot.
    """

    unit: Unit
    blocks: tuple[int, ...]
    shapes: tuple[Shape, ...]
    leaves: tuple[tuple[str, int | None], ...]
    slots: tuple[tuple[Shape, Shape] | None, ...]

    def arrays(self, of_blocks: Sequence[Any]) -> list[Any]:
        """Return the arrays of its blocks, in the shapes that the optimizer sees."""
        pairs = zip(self.blocks, self.shapes, strict=True)
        return [jnp.reshape(of_blocks[i], shape) for i, shape in pairs]

    def read(self, leaves: Leaves) -> list[Any]:
        """Return its leaves, in the shapes that the optimizer sees."""
        arrays = []
        for (name, owner), slot in zip(self.leaves, self.slots, strict=True):
            array = leaves[self.blocks[0] if owner is None else owner][name]
            arrays.append(array if slot is None else jnp.reshape(array, slot[1]))
        return arrays

    def store(self, results: Sequence[Any], leaves: Leaves) -> None:
        """Put new leaves into `leaves`."""
        for (name, owner), slot, new in zip(
            self.leaves, self.slots, results, strict=True
        ):
            array = new if slot is None else jnp.reshape(new, slot[0])
            for block in self.blocks if owner is None else (owner,):
                leaves[block][name] = array


def block_functions(
    make: Make,
    types: Types,
    blocks: Sequence[Block],
    planned: Transformation,
    *,
    averaged: Callable[..., Any] | None = None,
    wide: bool,
) -> BlockFunctions:
    """Return the functions that compute the updates of a table's blocks.

    Args:
        make, types, averaged, wide: as for `describe`.
        blocks: the blocks of the table.
        planned: the optimizer in the plan.

    Raises:
        PlacerError: if `make` is not the function that was compiled.
    """
    whole = trace_without_clip(make, types, averaged, wide)
    mine, compiled = fingerprint(whole).split("; "), planned.fingerprint.split("; ")
    if len(mine) != len(compiled) or not all(
        is_same_fingerprint(*pair) for pair in zip(mine, compiled, strict=True)
    ):
        raise PlacerError(
            f"{planned.fn} is not the optimizer that was compiled",
            hint="make its file the same in each import: seed np.random, sort sets,"
            " and use the same versions of JAX and optax",
        )
    units = _block_units(make, types, blocks, averaged, wide)

    def put_values(values: list[Any], each: _BlockUnit, results: Sequence[Any]) -> None:
        for i, value in zip(each.blocks, results, strict=True):
            values[i] = jnp.reshape(value, blocks[i].shape)

    def init(values: Sequence[Any]) -> Leaves:
        leaves: Leaves = [
            {} if block.numel else _empty(block, planned) for block in blocks
        ]
        for each in units:
            each.store(each.unit.init.function()(*each.arrays(values)), leaves)
        return leaves

    def update(
        values: Sequence[Any], leaves: Leaves, gradients: Sequence[Any], rate: Any
    ) -> tuple[list[Any], Leaves]:
        new_values, new_leaves = list(values), [dict(each) for each in leaves]
        for each in units:
            inputs = [*each.arrays(gradients), *each.read(leaves), *each.arrays(values)]
            results = each.unit.update.function()(*inputs, rate)
            count = len(each.blocks)
            put_values(new_values, each, results[:count])
            each.store(results[count:], new_leaves)
        return new_values, new_leaves

    def for_evaluation(values: Sequence[Any], leaves: Leaves) -> list[Any]:
        new_values = list(values)
        for each in units:
            assert each.unit.averaged is not None
            inputs = [*each.read(leaves), *each.arrays(values)]
            put_values(new_values, each, each.unit.averaged.function()(*inputs))
        return new_values

    return BlockFunctions(init, update, for_evaluation if averaged else None)


def _empty(block: Block, planned: Transformation) -> dict[str, Any]:
    """Return the leaves of a block without elements, which no update changes."""
    return {
        leaf.name: jnp.zeros(
            block.shape if leaf.kind == "slot" else leaf.shape, leaf.dtype
        )
        for leaf in planned.leaves_of(block.parameter)
    }


def _block_units(
    make: Make,
    types: Types,
    blocks: Sequence[Block],
    averaged: Callable[..., Any] | None,
    wide: bool,
) -> list[_BlockUnit]:
    """Return the units that update all blocks of a table."""
    whole = trace_without_clip(make, types, averaged, wide)
    owners = find_owners(whole)
    numbers = {name: i for i, name in enumerate(whole.names)}
    blocks_of: dict[int, list[int]] = {}
    for i, block in enumerate(blocks):
        if block.numel:
            blocks_of.setdefault(numbers[block.parameter], []).append(i)

    def on_blocks(
        unit: Unit, held: Sequence[int], shapes: Sequence[Shape]
    ) -> _BlockUnit:
        block_of = dict(zip(unit.parameters, held, strict=True))
        shape_of = dict(zip(unit.parameters, shapes, strict=True))
        leaves: list[tuple[str, int | None]] = []
        slots: list[tuple[Shape, Shape] | None] = []
        for leaf in unit.leaves:
            owner = owners.owners[leaf]
            leaves.append(
                (owners.names[leaf], None if owner is None else block_of[owner])
            )
            is_slot = owner is not None and owners.kinds[leaf] == "slot"
            slots.append(
                (blocks[block_of[owner]].shape, shape_of[owner])  # type: ignore[index]
                if is_slot
                else None
            )
        return _BlockUnit(unit, tuple(held), tuple(shapes), tuple(leaves), tuple(slots))

    def on_whole(group: Sequence[int], held: Sequence[int]) -> _BlockUnit:
        shapes = [whole.shape(i) for i in group]
        return on_blocks(make_unit(whole, owners, group), held, shapes)

    units: list[_BlockUnit] = []
    for group in owners.together:
        if blocks_of.keys() & set(group):
            held = [blocks_of.pop(i, []) for i in group]
            assert all(len(each) == 1 for each in held), "a group is whole on one node"
            units.append(on_whole(group, [each[0] for each in held]))
    turns: list[dict[str, int]] = []
    for number, mine in blocks_of.items():
        name = whole.names[number]
        if blocks[mine[0]].numel == prod(whole.shape(number)):
            units.append(on_whole([number], mine))
            continue
        turns.extend({} for _ in range(len(mine) - len(turns)))
        for turn, i in zip(turns, mine, strict=False):
            turn[name] = i
    for turn in turns:
        shapes = {
            name: shape_on_block(
                whole.shape(numbers[name]), blocks[i].start, blocks[i].stop
            )
            for name, i in turn.items()
        }
        found = units_of_blocks(make, types, shapes, averaged=averaged, wide=wide)
        for name, unit in found.items():
            assert isinstance(unit, Unit), f"{name} is cut, but {unit}"
            units.append(on_blocks(unit, [turn[name]], [shapes[name]]))
    return units
