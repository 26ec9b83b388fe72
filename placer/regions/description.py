"""A traced function as a spec has it: its regions, what they take and what they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from placer.errors import PlacerError
from placer.regions.batch_types import SIZES, result_type
from placer.regions.cut import OUTSIDE, Region
from placer.regions.function import Traced, is_repeated, traced
from placer.regions.row_proof import is_by_rows
from placer.types import ITEM_BYTES, TensorType


@dataclass(frozen=True, slots=True)
class Part:
    """A region: what its guards say, and values by name, with the types of those that
    it gives."""

    said: tuple[str, ...]
    takes: list[str]
    gives: dict[str, TensorType]


@dataclass(frozen=True, slots=True)
class Described:
    """The regions of a function, the names of its results, how it returns them, and
    whether each row of what it gives depends on that row alone."""

    parts: list[Part]
    rows: bool
    results: list[str]
    tree: Any

    def filled(self, values: Sequence[Any]) -> Any:
        """What the function returns, of these."""
        return jax.tree.unflatten(self.tree, values)


def described(
    fn: Callable[..., Any],
    args: str,
    values: Sequence[str],
    name: str,
    *,
    rows: bool | None,
    wide: bool,
) -> Described:
    """The function cut for op `name`, called on these values. With `rows` each row of
    its results is to depend on that row alone; None asks for a proof. `wide` is a
    precision of float64. Raises PlacerError where it cannot be cut, and what the function
    raises."""
    with jax.enable_x64(wide):
        small, large = (traced(fn, args, size) for size in SIZES)
    if _shape(small) != _shape(large):
        raise PlacerError(
            "its regions are not the same for every number of rows",
            hint="what a function does may not depend on how many rows there are",
        )
    with jax.enable_x64(wide):
        repeats = is_repeated(fn, args, SIZES[0])
    if not repeats:
        raise PlacerError(
            "it computes something else each time it is traced: it draws from"
            " np.random or random, or keeps something from one call to the next",
            hint="make such numbers outside of it, at the top of its file",
        )
    if not small.cut.regions:
        raise PlacerError("it computes nothing of what it is given")
    if rows is None:
        with jax.enable_x64(wide):
            rows = is_by_rows(lambda size: traced(fn, args, size))
    names = {(OUTSIDE, i): value for i, value in enumerate(values)}
    own = dict.fromkeys(s for s in small.cut.results if s[0] != OUTSIDE)
    for i, source in enumerate(own):
        names[source] = name if len(own) == 1 else f"{name}.out{i}"
    parts = []
    between = 0
    for at, (one, other) in enumerate(
        zip(small.cut.regions, large.cut.regions, strict=True)
    ):
        avals = zip(one.closed.out_avals, other.closed.out_avals, strict=True)
        types = [_type(one, k, *pair) for k, pair in enumerate(avals)]
        if not types:
            raise PlacerError(
                f"{one.begins()} stands where nothing is computed that others take",
                hint="open the guard of what it is about around it, too",
            )
        for k in range(len(types)):
            if (at, k) not in names:
                names[at, k] = f"{name}.mid{between}"
                between += 1
        if rows:
            _check_rows(one, types)
        gives = {names[at, k]: kind for k, kind in enumerate(types)}
        parts.append(Part(one.said, [names[source] for source in one.takes], gives))
    results = [names[source] for source in small.cut.results]
    return Described(parts, rows, results, jax.tree.structure(small.results))


def packed(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as a safetensors file; the same give the same bytes."""
    ordered = {n: np.ascontiguousarray(np.asarray(arrays[n])) for n in sorted(arrays)}
    shaped = {n: ordered[n].reshape(np.shape(arrays[n])) for n in ordered}
    return bytes(save(shaped))


def _shape(trace: Traced) -> object:
    regions = [
        (each.said, each.takes, len(each.closed.out_avals))
        for each in trace.cut.regions
    ]
    return regions, trace.cut.results, jax.tree.structure(trace.results)


def _type(region: Region, index: int, small: Any, large: Any) -> TensorType:
    what = f"what {region.line(index)} makes, which another place needs,"
    if str(small.dtype) not in ITEM_BYTES or str(small.dtype) == "key":
        raise PlacerError(
            f"{what} is {small.dtype}, which no message carries",
            hint="make and use it inside of one guard",
        )
    return result_type(what, small, large)


def _check_rows(region: Region, types: Sequence[TensorType]) -> None:
    if not any(kind.has_batch for kind in types):
        return  # it depends on no row, or takes them all
    for index, kind in enumerate(types):
        if not kind.has_rows:
            raise PlacerError(
                f"with batch='rows' all that leaves a place has rows, and what"
                f" {region.line(index)} makes is {kind}",
                hint="say batch='whole', or reduce over rows in an op of placer.layers",
            )
