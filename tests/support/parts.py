"""Runs the regions of a function of parts on simulated workers, and the same by `jax.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from placer.ops.functions.cut import PART_NUMBER, STEP_KEY, ValueSource
from placer.ops.functions.function import trace_function
from placer.ops.functions.mode import Mode
from placer.ops.functions.replica_regions import Parts
from placer.ops.functions.run_region import run_region
from tests.support.regions import arguments_text

KEY = jax.random.key(11)


def mode_of(parts: int, axis: str = "batch") -> Mode:
    return Mode(training=True, parts=parts, axis=axis)


def on_workers(
    fn: Callable[..., Any],
    types: Sequence[str],
    inputs: Sequence[Any],
    parts: int,
    workers: int,
) -> list[Any]:
    """Return the results of a function, whose regions run on each worker's rows."""
    mode, text = mode_of(parts), arguments_text(*types)
    batch = next(
        len(x) for x, kind in zip(inputs, types, strict=True) if "batch" in kind
    )
    rows, count = batch // parts, parts // workers
    trace = trace_function(fn, text, rows, mode)
    values: dict[ValueSource, Any] = {(-1, i): x for i, x in enumerate(inputs)}
    for number, region in enumerate(trace.cut.regions):
        operands = [values[source] for source in region.operands]
        if region.split is None:
            results = run_region(fn, text, number, rows, operands, "", mode)
        else:
            kinds = region.split.operands
            of_workers = []
            for worker in range(workers):
                own = Parts(count, rows, count * worker + jnp.arange(count))
                size = count * rows
                local = [
                    x
                    if kind == "equal"
                    else jax.lax.dynamic_slice_in_dim(x, size * worker, size)
                    for x, kind in zip(operands, kinds, strict=True)
                ]
                of_workers.append(
                    run_region(
                        fn, text, number, rows, local, "", mode, drawn(own), count
                    )
                )
            results = [
                sum(of_result) if kind == "sum" else jnp.concatenate(of_result)
                for kind, *of_result in zip(
                    region.split.results, *of_workers, strict=True
                )
            ]
        values.update({(number, k): out for k, out in enumerate(results)})
    return [values[source] for source in trace.cut.results]


def drawn(own: Parts) -> Callable[[ValueSource], Any]:
    """Return the keys and the numbers of a worker's parts."""

    def of(source: ValueSource) -> Any:
        if source == PART_NUMBER:
            return own.numbers.astype(jnp.int32)
        assert source == STEP_KEY
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(KEY, own.numbers)

    return of


def by_vmap(
    fn: Callable[..., Any],
    types: Sequence[str],
    inputs: Sequence[Any],
    parts: int,
    has_key: bool = False,
) -> list[Any]:
    """Return the results of a function by the definition: `jax.vmap` over the parts."""
    has_rows = ["batch" in kind for kind in types]
    split = [
        x.reshape(parts, -1, *x.shape[1:]) if rows else x
        for x, rows in zip(inputs, has_rows, strict=True)
    ]
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(KEY, jnp.arange(parts))

    def part(key: Any, *values: Any) -> Any:
        return jax.tree.leaves(fn(*values, key=key) if has_key else fn(*values))

    axes = (0, *(0 if rows else None for rows in has_rows))
    results = jax.vmap(part, in_axes=axes, axis_name="batch")(keys, *split)
    rows = next(x.shape[1] for x, each in zip(split, has_rows, strict=True) if each)
    return [
        y.reshape(-1, *y.shape[2:]) if y.ndim > 1 and y.shape[1] == rows else y[0]
        for y in results
    ]
