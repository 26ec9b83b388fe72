"""The processor's instruction that loads a cache line before it is needed."""

from __future__ import annotations

from typing import Any, Final

import numba.types
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD: Final = 24
"""How many keys a loop looks ahead: a line from memory takes longer than the work on a
few keys, and the processor has only so many loads on their way at once."""

_READ, _MOST_LOCAL, _DATA = 0, 3, 1


@intrinsic
def prefetch(context: Any, address: Any) -> Any:
    """Begin to load the cache line at an address (an integer) from memory."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.PointerType())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.prefetch.p0"
        )
        hints = [word(_READ), word(_MOST_LOCAL), word(_DATA)]
        builder.call(function, [pointer, *hints])
        return context.get_dummy_value()

    return numba.types.void(address), generate
