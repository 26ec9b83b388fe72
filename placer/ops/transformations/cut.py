"""Compares the update of a block with the update of its whole parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from placer.ops.transformations.compare import DifferError, Shape, check_same
from placer.ops.transformations.config import Make
from placer.ops.transformations.describe import trace_without_clip
from placer.ops.transformations.ownership import NOT_ELEMENTWISE, find_owners
from placer.ops.transformations.trace import Traced, Types, with_shapes
from placer.ops.transformations.units import Unit, make_unit


def differences_on_blocks(
    make: Make,
    types: Types,
    blocks: Mapping[str, Shape],
    *,
    averaged: Callable[..., Any] | None = None,
    wide: bool,
) -> dict[str, str]:
    """Return the parameters that cannot be updated by blocks, each with the reason.

    Args:
        make, types, averaged, wide: as for `describe`.
        blocks: the shape of a block of each cut parameter (`shape_on_block`).
    """
    units = units_of_blocks(make, types, blocks, averaged=averaged, wide=wide)
    return {name: each for name, each in units.items() if isinstance(each, str)}


def units_of_blocks(
    make: Make,
    types: Types,
    blocks: Mapping[str, Shape],
    *,
    averaged: Callable[..., Any] | None,
    wide: bool,
) -> dict[str, Unit | str]:
    """Return the equations that update a block of each parameter, or why there are none.

    The arguments are those of `differences_on_blocks`.
    """
    whole = trace_without_clip(make, types, averaged, wide)
    owners = find_owners(whole)
    numbers = {name: i for i, name in enumerate(whole.names)}
    tied = {i for group in owners.together for i in group}
    found: dict[str, Unit | str] = {}
    cuttable: dict[str, Shape] = {}
    for name, shape in blocks.items():
        if numbers[name] in tied:
            found[name] = "its update depends on other parameters"
        elif numbers[name] in owners.whole:
            found[name] = NOT_ELEMENTWISE
        else:
            cuttable[name] = shape

    def compare(shapes: Mapping[str, Shape]) -> dict[str, Unit | str]:
        try:
            cut = trace_without_clip(make, with_shapes(types, shapes), averaged, wide)
        except Exception as error:
            # The user's function may refuse these shapes. Then it runs on whole parameters.
            text = f"its trace on a block fails: {type(error).__name__}: {error}"
            return dict.fromkeys(shapes, text)
        return {name: _compare(whole, cut, numbers[name]) for name in shapes}

    if cuttable:
        # One trace for all blocks is enough if no update depends on the other shapes.
        units = compare(cuttable)
        for name, each in units.items():
            if isinstance(each, str) and len(cuttable) > 1:
                units |= compare({name: cuttable[name]})
        found |= units
    return found


def _compare(whole: Traced, cut: Traced, number: int) -> Unit | str:
    """Return the unit of a parameter's block, or the first difference from the whole one."""
    owners = find_owners(whole)
    shapes = whole.shape(number), cut.shape(number)
    if cut.clip != whole.clip:
        return "it clips the norm of gradients differently"
    paths = [[(leaf.path, leaf.dtype) for leaf in each.leaves] for each in (whole, cut)]
    if paths[0] != paths[1]:
        return "its state has another structure on a block"
    one, other = (make_unit(each, owners, [number]) for each in (whole, cut))
    for i in one.leaves:
        wanted = shapes[1] if owners.kinds[i] == "slot" else whole.leaves[i].shape
        if cut.leaves[i].shape != wanted:
            leaf = owners.names[i]
            return f"{leaf} of its state is {list(cut.leaves[i].shape)} on a block"
    try:
        check_same(one.init, other.init, shapes)
        check_same(one.update, other.update, shapes)
        if one.averaged is not None and other.averaged is not None:
            check_same(one.averaged, other.averaged, shapes)
    except DifferError as error:
        return f"its equations on a block differ: {error}"
    return other
