"""Refuses functions that bind the axis over the parts of a batch again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from placer.errors import PlacerError
from placer.ops.functions.user_lines import caller_line

# Threads of one process may trace at the same time, and the method is replaced for all of
# them.
_lock = threading.RLock()


@contextmanager
def refuse_second_binding(axis: str) -> Iterator[None]:
    """Raise PlacerError if a `vmap` that this thread calls has an axis with the same name.

    JAX would use the inner axis, so reductions would not reach the other parts.
    """
    # JAX has no public way to see the axis of a mapped function that already exists.
    from jax._src.interpreters.batching import AxisData

    binding: Any = AxisData
    thread = threading.get_ident()
    with _lock:
        original = binding.__init__

        def init(data: Any, *args: Any, **keywords: Any) -> None:
            original(data, *args, **keywords)
            if data.name == axis and threading.get_ident() == thread:
                raise PlacerError(
                    f"vmap{caller_line()} binds the axis '{axis}' again, so reductions"
                    " inside would not reach the other parts of the batch",
                    hint='pass another name to placer.trace, such as axis="parts", and'
                    f' reduce over both: axis_name=("parts", "{axis}")',
                )

        binding.__init__ = init
        try:
            yield
        finally:
            binding.__init__ = original
