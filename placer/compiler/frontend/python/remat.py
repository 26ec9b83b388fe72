"""`remat`: a guard for ops that are recomputed in the backward pass, to save memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[object | None] = ContextVar("placer.remat", default=None)


@contextmanager
def remat() -> Iterator[None]:
    """Recompute the ops inside the `with` statement in the backward pass.

    Only the inputs of the whole group are stored, which saves memory. In a spec this is
    a scope with `remat: true`. It has no effect inside another `remat`.

    Returns:
        A context manager.

    Example:
        with remat():
            h = layers.fc(x, 1024, activation="gelu")
            y = layers.fc(h, 256)
    """
    before = _current.set(_current.get() or object())
    try:
        yield
    finally:
        _current.reset(before)


def current_remat() -> object | None:
    """Return an object that identifies the open `remat`, or None."""
    return _current.get()
