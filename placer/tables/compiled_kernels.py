"""Compiles optimizer rules with numba to loops over flat arrays.

Importing numba takes half a second, so this module is imported only before the first update
of a table. `placer.system.caches.machine_code` caches the machine code.
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
"""The gradients of all sources, their scale, and an array of one record with the numbers of
the step (`record_of_numbers`). numba would convert a tuple of numbers one by one, which is
slower."""
Loop = Callable[[Arrays, Update], None]

types: Any = numba.types

# Tell numba how to compute the elementary functions for one element.
overload(elementary.sqrt)(lambda x: lambda x: np.sqrt(x))
overload(elementary.absolute)(lambda x: lambda x: np.abs(x))
overload(elementary.sign)(lambda x: lambda x: np.sign(x))
overload(elementary.maximum)(lambda x, y: lambda x, y: np.maximum(x, y))
overload(elementary.where)(
    lambda condition, x, y: lambda condition, x, y: x if condition else y
)


@register_jitable
def _gradient(update: Update, i: int) -> Any:
    """Return the scaled sum of element i of all gradients, added from left to right."""
    gradients, scale, _ = update
    total = gradients[0][i]
    for source in range(1, len(gradients)):
        total += gradients[source][i]
    return scale * total


# numba compiles `elements` and `store_elements` recursively, for each number of arrays.


def elements(arrays: Arrays, i: int) -> Any:
    """Return element i of each array."""


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
    """Return the loop of a rule in Python.

    It writes the arrays from index `first_written` on. Values are read from array 0.
    """
    next_written = first_written + 1  # numba slices tuples only at constants

    def loop(arrays: Arrays, update: Update) -> None:
        # Slice before the loop: slices inside it would prevent vector instructions.
        read, written = arrays[:1] + arrays[next_written:], arrays[first_written:]
        for i in range(arrays[0].size):
            results = rule(*elements(read, i), _gradient(update, i), update[2][0])
            store_elements(written, i, results)

    return loop


def compile_kernel(kernel: Kernel, in_place: bool, sources: int, dtype: str) -> Loop:
    """Compile the loop of a kernel.

    The loop takes a tuple of the flat arrays of `arrays_of`, and an `Update` whose gradients
    may be read-only. Unless the update is `in_place`, the tuple starts with one more array:
    old values are read from array 0 and new values are written to array 1. The loop runs
    without the interpreter lock.

    Args:
        kernel: the kernel.
        in_place: whether values are overwritten.
        sources: the number of gradients to sum.
        dtype: float32 or float64.
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
