"""Processor instructions for compiled loops that Python and numba do not provide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba.types
from llvmlite import ir
from numba.extending import intrinsic, register_jitable

AHEAD: Final = 24
"""How many keys ahead a loop prefetches. Loading a cache line takes longer than processing a
few keys, and a processor can have only a limited number of loads in progress."""

_types: Any = numba.types
_READ, _MOST_LOCAL, _DATA = 0, 3, 1


def _prefetch(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.PointerType())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, kind, name)
        hints = [word(_READ), word(_MOST_LOCAL), word(_DATA)]
        builder.call(function, [pointer, *hints])
        return context.get_dummy_value()

    return _types.void(address), generate


def _float32_of(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return _types.float32(_types.uint32), generate


def _bits_of(context: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return _types.uint32(_types.float32), generate


def _rotated(context: Any, word: Any, left: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        name = "llvm.fshl.i32"
        function = builder.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(word, [word, word, word])
            function = ir.Function(builder.module, kind, name)
        return builder.call(function, [args[0], args[0], args[1]])

    return _types.uint32(_types.uint32, _types.uint32), generate


prefetch: Any = intrinsic(_prefetch)
"""`prefetch(address)` starts to load the cache line at an integer address."""
float32_of: Any = intrinsic(_float32_of)
"""`float32_of(bits)` returns the float32 with the bits of a uint32."""
bits_of: Any = intrinsic(_bits_of)
"""`bits_of(number)` returns the bits of a float32 as a uint32."""
rotated: Any = intrinsic(_rotated)
"""`rotated(word, left)` rotates the bits of a uint32 to the left. numba would compute 32-bit
shifts with 64 bits, which makes vector instructions several times slower."""

_inline: Any = register_jitable(inline="always")


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that numba inlines it into its callers.

    A call would count a reference to each array of a table, which is slower than the work of
    the function.
    """
    found: Callable[..., Any] = _inline(function)
    return found
