"""Elementary functions of a number, a numpy array or a JAX array.

Optimizer rules use these functions, so that each rule is written only once. With arrays they
call numpy or JAX. `placer.tables.compiled_kernels` defines them for numba.
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
