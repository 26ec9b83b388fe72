"""Compiles functions of tables to machine code at their first call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba

from placer.plan.settings.sparse import row_bytes
from placer.system.caches.machine_code import (
    COMPILING,
    compile_function,
    kernels_folder,
)


class Compiled:
    """A function that numba compiles at the first call, for the types of its arguments.

    The machine code runs without the interpreter lock. Functions that it calls must be
    decorated with `register_jitable`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._python = function
        self._machine: Callable[..., Any] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        machine = self._machine or self._compile(args)
        return machine(*args)

    def _compile(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        with COMPILING:
            if self._machine is None:
                signature = tuple(map(numba.typeof, args))
                self._machine = compile_function(
                    self._python, [signature], cache_folder(), only=False
                )
            return self._machine


compiled = Compiled
"""Decorator that makes a function a `Compiled`."""


def cache_folder() -> Path | None:
    """Return the folder for cached machine code, or None if it cannot be cached."""
    return kernels_folder(_digest())


@cache
def _digest() -> str:
    # Covers all sources that compiled functions use: numba checks only the file of the
    # function that it compiles.
    sources = [Path(row_bytes.__file__), *sorted(Path(__file__).parent.rglob("*.py"))]
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
