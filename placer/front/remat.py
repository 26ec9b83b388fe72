"""`remat`: ops whose forward is computed again for backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_region: ContextVar[object | None] = ContextVar("placer.remat", default=None)


@contextmanager
def remat() -> Iterator[None]:
    """Ops made inside keep what goes into them as a whole, and are computed again for
    backward: a block of a spec with `remat: true`. Inside another one it says nothing.
    """
    before = _region.set(_region.get() or object())
    try:
        yield
    finally:
        _region.reset(before)


def region() -> object | None:
    """What tells the ops of one `remat` from those of another; None outside."""
    return _region.get()
