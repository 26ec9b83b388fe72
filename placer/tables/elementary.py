"""Elementary functions of a number, a numpy array or a JAX array.

An optimizer rule is written once, by these: called with arrays it computes with numpy or
JAX, and `placer.tables.compiled_kernels` tells numba what they are for one element.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _namespace(x: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic | float):
        return np
    import jax.numpy as jnp

    return jnp


def sqrt(x: Any) -> Any:
    return _namespace(x).sqrt(x)


def absolute(x: Any) -> Any:
    return _namespace(x).abs(x)


def sign(x: Any) -> Any:
    return _namespace(x).sign(x)


def maximum(x: Any, y: Any) -> Any:
    return _namespace(x).maximum(x, y)


def where(condition: Any, x: Any, y: Any) -> Any:
    return _namespace(x).where(condition, x, y)
