"""What the loops need of the processor that Python has no words for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba.types
from llvmlite import ir
from numba.extending import intrinsic, register_jitable

AHEAD: Final = 24
"""How many keys a loop looks ahead: a line from memory takes longer than the work on a
few keys, and the processor has only so many loads on their way at once."""

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
"""`prefetch(address)` begins to load the cache line at an address (an integer)."""
float32_of: Any = intrinsic(_float32_of)
"""`float32_of(bits)` is the float32 with these 32 bits (a uint32)."""
bits_of: Any = intrinsic(_bits_of)
"""`bits_of(number)` are the 32 bits of a float32."""
rotated: Any = intrinsic(_rotated)
"""`rotated(word, left)` is a uint32 with its bits rotated; numba computes shifts of 32 bits
with 64, which takes vector instructions several times as long."""

_inline: Any = register_jitable(inline="always")


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that becomes part of the loops that call it: a call with the
    arrays of a table counts a reference to each, which takes longer than what it does."""
    found: Callable[..., Any] = _inline(function)
    return found
