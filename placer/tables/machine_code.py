"""Functions of tables that are compiled to machine code when they are first called."""

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
    """A function that is compiled when it is first called, for the types of that call,
    and runs without the interpreter lock.

    Functions that it calls are decorated by `register_jitable`.
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
"""Decorates a function: see `Compiled`."""


def cache_folder() -> Path | None:
    """The folder that machine code is kept in, or None where nothing can be kept."""
    return kernels_folder(_digest())


@cache
def _digest() -> str:
    """Changes whenever a function or a number does that others are compiled with: numba
    looks only at the file of a function itself."""
    sources = [Path(row_bytes.__file__), *sorted(Path(__file__).parent.rglob("*.py"))]
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
