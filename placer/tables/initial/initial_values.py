"""Initial values of parameters: the same bits for a slice, a row and the whole.

Random ones are drawn element by element (`placer.tables.initial.draws`), those of an
orthogonal matrix made of such elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from placer.config.initializers import (
    DEFAULT_NORMAL,
    DEFAULT_UNIFORM,
    canonical,
    check,
    check_shape,
    file_of,
)
from placer.errors import PlacerError
from placer.tables.initial.draws import DRAWS, Floats, Key, fill, key_of, normal
from placer.tables.initial.orthogonal import orthonormal_rows
from placer.tables.initial.weight_file import flat_range

Init = str | Mapping[str, Any]

_TWO_STD = 0.87962566103423978  # deviation of a normal of deviation 1, cut at ± 2

_SCALED = {
    "xavier_uniform": (1.0, "fan_avg", "uniform"),
    "xavier_normal": (1.0, "fan_avg", "normal"),
    "he_uniform": (2.0, "fan_in", "uniform"),
    "he_normal": (2.0, "fan_in", "normal"),
    "lecun_uniform": (1.0, "fan_in", "uniform"),
    "lecun_normal": (1.0, "fan_in", "normal"),
}
"""What each of these is of variance scaling: scale, mode and distribution."""


def values(
    init: Init,
    *,
    seed: int,
    name: str,
    shape: tuple[int, ...],
    start: int,
    stop: int,
    dtype: str,
) -> np.ndarray:
    """Elements [start, stop) of a parameter flattened in C order: [stop - start].

    Computed in float64 and then cast to `dtype`, so float32 and float64 agree to
    rounding; those of a file (`{"file": path}`) are cast. PlacerError for an initialiser
    that is none, or that fills no such shape.
    """
    if (file := file_of(init)) is not None:
        return flat_range(Path(file), name, shape, start, stop).astype(dtype)
    if problem := check(init) or check_shape(init, shape):
        raise PlacerError(f"parameter {name}: {problem}")
    assert 0 <= start <= stop <= prod(shape), (name, start, stop, shape)
    out = np.empty(stop - start, dtype)
    if start == stop:
        return out
    form, argument = _parse(canonical(init), shape)
    match form:
        case "constant":
            out.fill(argument)
        case "identity":
            row, column = divmod(np.arange(start, stop), shape[1])
            out[:] = np.where(row == column, argument, 0.0)
        case "orthogonal":
            out[:] = argument * _orthogonal(key_of(seed, name), shape, start, stop)
        case _:
            draw = DRAWS[form](*argument)
            fill(out, draw, key_of(seed, name), start, prod(shape[1:]))
    return out


def _parse(init: Init, shape: tuple[int, ...]) -> tuple[str, Any]:
    """The form reduced to one that is made below, with its argument."""
    form: str
    argument: Any = None
    if isinstance(init, str):
        form = init
    else:
        ((form, argument),) = init.items()
    match form:
        case "zeros":
            return "constant", 0.0
        case "ones":
            return "constant", 1.0
        case "constant":
            return "constant", argument
        case "identity" | "orthogonal":
            return form, 1.0 if argument is None else argument
        case "uniform":
            return "uniform", argument or DEFAULT_UNIFORM
        case "normal" | "truncated_normal":
            if isinstance(argument, Mapping):
                return form, (argument.get("mean", 0.0), argument["std"])
            return form, (0.0, argument or DEFAULT_NORMAL)
        case "variance_scaling":
            return _scaled(shape, **argument)
    return _scaled(shape, *_SCALED[form])


def _scaled(
    shape: tuple[int, ...],
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
) -> tuple[str, tuple[float, float]]:
    """The distribution of mean 0 and variance scale / fan, as Keras and JAX have it."""
    fan_in, fan_out = fans(shape)
    by_mode = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    fan = by_mode[mode]
    match distribution:
        case "uniform":
            limit = sqrt(3.0 * scale / fan)
            return "uniform", (-limit, limit)
        case "normal":
            return "normal", (0.0, sqrt(scale / fan))
    return "truncated_normal", (0.0, sqrt(scale / fan) / _TWO_STD)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a parameter: [in, out], or [height, width, …, in, out].

    `in` is what one output sees: 1 in the kernel of a depthwise convolution. A
    vector's fans are its length; a scalar's are 1.
    """
    if len(shape) < 2:
        n = max(1, prod(shape))
        return n, n
    field = prod(shape[:-2])
    return max(1, field * shape[-2]), max(1, field * shape[-1])


def _orthogonal(key: Key, shape: tuple[int, ...], start: int, stop: int) -> Floats:
    """Elements of [rows, columns], all dimensions but the last as rows.

    The fewer of the two are orthonormal. Of a wide matrix the rows that are asked for
    are made, of a tall one the whole.
    """
    height, width = prod(shape[:-1]), shape[-1]
    wide = height <= width
    first, last = (start // width, -(-stop // width)) if wide else (0, width)
    normals = np.empty((last, max(height, width)))
    fill(normals.reshape(-1), normal(0.0, 1.0), key, 0, normals.shape[1])
    rows = orthonormal_rows(normals, first)
    whole = rows if wide else rows.T
    return whole.reshape(-1)[start - first * width : stop - first * width]
