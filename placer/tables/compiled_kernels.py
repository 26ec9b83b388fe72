"""Optimizer rules as machine code: loops over flat arrays, compiled by numba.

This module imports numba, which takes half a second, so it is imported when a table is
about to be updated. `placer.system.caches.machine_code` keeps what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numba.types
import numpy as np
import numpy.typing as npt
from numba.extending import overload, register_jitable

from placer.system.caches.machine_code import COMPILING, compile_function
from placer.tables import elementary
from placer.tables.machine_code import cache_folder
from placer.tables.optimizer_rules import Kernel, arrays_of, record_of_numbers

Array = npt.NDArray[Any]
Arrays = tuple[Array, ...]
Update = tuple[tuple[Array, ...], Any, Array]
"""The gradient of each source, their scale, and an array of one record with the numbers
of the step (`record_of_numbers`). A call with a record takes less time than one with a
tuple of numbers, which numba converts one by one."""
Loop = Callable[[Arrays, Update], None]

types: Any = numba.types

# What the elementary functions are for one element.
overload(elementary.sqrt)(lambda x: lambda x: np.sqrt(x))
overload(elementary.absolute)(lambda x: lambda x: np.abs(x))
overload(elementary.sign)(lambda x: lambda x: np.sign(x))
overload(elementary.maximum)(lambda x, y: lambda x, y: np.maximum(x, y))
overload(elementary.where)(
    lambda condition, x, y: lambda condition, x, y: x if condition else y
)


@register_jitable
def _gradient(update: Update, i: int) -> Any:
    """Element i of the gradients, summed from left to right, times the scale."""
    gradients, scale, _ = update
    total = gradients[0][i]
    for source in range(1, len(gradients)):
        total += gradients[source][i]
    return scale * total


# numba compiles these two for each number of arrays, one array after the other.


def elements(arrays: Arrays, i: int) -> Any:
    """Element i of each array."""


overload(elements)(
    lambda arrays, i: (
        (lambda arrays, i: (arrays[0][i], *elements(arrays[1:], i)))
        if len(arrays)
        else (lambda arrays, i: ())
    )
)


def store_elements(arrays: Arrays, i: int, results: Any) -> None:
    """Replace element i of each array."""


@overload(store_elements)
def _compile_store(arrays: Any, i: Any, results: Any) -> Callable[..., None]:
    more = len(arrays) > 1

    # numba compares the annotations of the two functions.
    def store(arrays: Any, i: Any, results: Any) -> None:
        arrays[0][i] = results[0]
        if more:
            store_elements(arrays[1:], i, results[1:])

    return store


def _loop(rule: Kernel, first_written: int) -> Loop:
    """The loop of a rule in Python. It writes the arrays from the first written one on;
    it reads the first of all in place of the first written."""
    next_written = first_written + 1  # numba slices tuples at constants only

    def loop(arrays: Arrays, update: Update) -> None:
        # Slices within the loop would keep it from using vector instructions.
        read, written = arrays[:1] + arrays[next_written:], arrays[first_written:]
        for i in range(arrays[0].size):
            results = rule(*elements(read, i), _gradient(update, i), update[2][0])
            store_elements(written, i, results)

    return loop


def compile_kernel(kernel: Kernel, in_place: bool, sources: int, dtype: str) -> Loop:
    """The loop of a kernel over the gradients of so many sources.

    It takes a tuple of the flat arrays of `arrays_of`, and an `Update`, whose gradients
    may be read-only. Unless it is `in_place`, the tuple starts with one array more:
    values are read from the first, and written to the second. It runs without the
    interpreter lock. `dtype` is float32 or float64.
    """
    with COMPILING:
        return _compiled(kernel, in_place, sources, dtype)


@cache
def _compiled(kernel: Kernel, in_place: bool, sources: int, dtype: str) -> Loop:
    number = getattr(types, dtype)
    array = types.Array(number, 1, "C")
    gradient = types.Array(number, 1, "C", readonly=True)
    numbers = types.Array(numba.from_dtype(record_of_numbers(np.dtype(dtype))), 1, "C")
    update = types.Tuple([types.UniTuple(gradient, sources), number, numbers])
    first_written = 0 if in_place else 1
    arrays = types.UniTuple(array, len(arrays_of(kernel)) + first_written)
    signature = types.void(arrays, update)
    loop = _loop(register_jitable(kernel), first_written)
    compiled: Loop = compile_function(loop, [signature], cache_folder())
    return compiled
