"""Describes a traced function for a spec: its regions, with named values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from placer.errors import PlacerError
from placer.ops.functions.batch_types import TRACE_BATCHES, result_type
from placer.ops.functions.cut import OUTSIDE, Region
from placer.ops.functions.flatten import Guards
from placer.ops.functions.function import (
    TracedFunction,
    is_deterministic,
    trace_function,
)
from placer.ops.functions.row_proof import is_by_rows
from placer.place.types import ITEM_BYTES, TensorType


@dataclass(frozen=True, slots=True)
class RegionDescription:
    """A region: its guards, the names of its operands, and its results with types."""

    guards: Guards
    operands: list[str]
    results: dict[str, TensorType]


@dataclass(frozen=True, slots=True)
class FunctionDescription:
    """The regions of a traced function, and its results.

    Attributes:
        is_by_rows: row i of every result depends only on row i of the inputs.
        results: the names of the results.
        tree: the pytree structure of the results.
    """

    regions: list[RegionDescription]
    is_by_rows: bool
    results: list[str]
    tree: Any

    def unflatten(self, values: Sequence[Any]) -> Any:
        """Return the function's pytree of results, with these values as leaves."""
        return jax.tree.unflatten(self.tree, values)


def describe(
    fn: Callable[..., Any],
    args: str,
    values: Sequence[str],
    name: str,
    *,
    rows: bool | None,
    wide: bool,
) -> FunctionDescription:
    """Trace and cut a function for the op `name`.

    Args:
        args: the text of its arguments (`placer.ops.functions.arguments`).
        values: the names of their values.
        rows: whether row i of the results depends only on row i of the inputs; None
            tries to prove it.
        wide: whether the precision is float64.

    Raises:
        PlacerError: if the function cannot be cut. Errors of the function propagate.
    """
    with jax.enable_x64(wide):
        small, large = (trace_function(fn, args, size) for size in TRACE_BATCHES)
        if _structure(small) != _structure(large):
            raise PlacerError(
                "its regions depend on the number of rows",
                hint="perform the same operations for any number of rows",
            )
        if not is_deterministic(fn, args, TRACE_BATCHES[0]):
            raise PlacerError(
                "its traces differ: it draws from np.random or random, or keeps"
                " state between calls",
                hint="create such numbers outside of the function, at the top of its"
                " file",
            )
        if not small.cut.regions:
            raise PlacerError("it computes nothing from its arguments")
        if rows is None:
            rows = is_by_rows(fn, args)
    names = {(OUTSIDE, i): value for i, value in enumerate(values)}
    computed = dict.fromkeys(s for s in small.cut.results if s[0] != OUTSIDE)
    for i, source in enumerate(computed):
        names[source] = name if len(computed) == 1 else f"{name}.out{i}"
    regions = []
    intermediates = 0
    for at, (one, other) in enumerate(
        zip(small.cut.regions, large.cut.regions, strict=True)
    ):
        avals = zip(one.closed.out_avals, other.closed.out_avals, strict=True)
        types = [_result_type(one, k, *pair) for k, pair in enumerate(avals)]
        if not types:
            raise PlacerError(
                f"the results of the region of {one.describe_start()} are not used",
                hint="put the guard around the code that uses its results as well",
            )
        for k in range(len(types)):
            if (at, k) not in names:
                names[at, k] = f"{name}.mid{intermediates}"
                intermediates += 1
        if rows:
            _check_rows(one, types)
        region_results = {names[at, k]: kind for k, kind in enumerate(types)}
        operands = [names[source] for source in one.operands]
        regions.append(RegionDescription(one.guards, operands, region_results))
    results = [names[source] for source in small.cut.results]
    tree = jax.tree.structure(small.results)
    return FunctionDescription(regions, rows, results, tree)


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Return a safetensors file with these arrays; equal arrays give equal bytes."""
    ordered = {n: np.ascontiguousarray(np.asarray(arrays[n])) for n in sorted(arrays)}
    shaped = {n: ordered[n].reshape(np.shape(arrays[n])) for n in ordered}
    return bytes(save(shaped))


def _structure(trace: TracedFunction) -> object:
    regions = [
        (each.guards, each.operands, len(each.closed.out_avals))
        for each in trace.cut.regions
    ]
    return regions, trace.cut.results, jax.tree.structure(trace.results)


def _result_type(region: Region, index: int, small: Any, large: Any) -> TensorType:
    what = f"the result of {region.describe_result(index)}, which another place needs,"
    if str(small.dtype) not in ITEM_BYTES or str(small.dtype) == "key":
        raise PlacerError(
            f"{what} is {small.dtype}, which cannot be sent in a message",
            hint="compute and use it inside one guard",
        )
    return result_type(what, small, large)


def _check_rows(region: Region, types: Sequence[TensorType]) -> None:
    if not any(kind.has_batch for kind in types):
        return  # the results depend on no row, or on all rows
    for index, kind in enumerate(types):
        if not kind.has_rows:
            raise PlacerError(
                "with batch='rows' all values that leave a place must have rows,"
                f" but the result of {region.describe_result(index)} is {kind}",
                hint="pass batch='whole', or reduce over rows with an op of"
                " placer.layers",
            )
