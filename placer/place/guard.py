"""Guards: Python context managers that set the place of the ops inside them.

    with place_guard("/node:worker"):
        with place_guard("/gpu:0-7"):
            ...  # at /node:worker/gpu:0-7

Open guards belong to one thread and one asyncio task. A guard closes when its block is
left, also by an exception. If JAX is loaded, a guard also opens a named scope of JAX,
so that equations that are traced inside have its place (`placer.place.scope`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from placer.callsite import caller_span
from placer.errors import PlaceError, Span
from placer.place import scope
from placer.place.place import Place


@dataclass(frozen=True, slots=True)
class OpCall:
    """The call of an op, as it is passed to a callable guard."""

    kind: str
    name: str
    inputs: tuple[str, ...] = ()
    """The names of the operands."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """The attributes as they are written in the call, without defaults."""


PlaceFunction = Callable[[OpCall], "str | Place | None"]
"""A callable guard: returns the place of an op, or None to leave it unchanged."""


@dataclass(frozen=True, slots=True)
class GuardEntry:
    """The place of an open guard, and the line that opened it."""

    place: Place
    span: Span


def place_guard(
    place: str | Place | PlaceFunction | None,
) -> AbstractContextManager[None]:
    """Set the place of the ops that are called inside the `with` statement.

    Guards nest as scopes of a spec do: the place merges into that of the guards around
    it, field by field, and the inner one wins (`Place.merge`).

    Args:
        place: One of

            - a place string such as `/node:worker/gpu:0`, or a `Place`; `""` changes
              nothing;
            - None, which clears the place of the guards around this one;
            - a function that is called with each op (an object with `kind`, `name`,
              `inputs` and `attrs`) and returns its place, or None to leave it
              unchanged.

    Returns:
        A context manager. It can be entered several times, and used as a decorator.

    Raises:
        PlaceError: At the caller's line, if `place` is not a place.

    Example:
        with place_guard("/node:worker"):
            h = layers.fc(x, 64)  # at /node:worker
            with place_guard("/gpu:1"):
                y = layers.fc(h, 10)  # at /node:worker/gpu:1
    """
    return _GuardContext(_make_guard(place, caller_span()))


def device_guard(device: str | None) -> AbstractContextManager[None]:
    """Set the device of the ops that are called inside the `with` statement.

    The node is that of the guards around this one. PaddlePaddle's
    `fluid.device_guard` has the same form.

    Args:
        device: A device such as `gpu`, `gpu:1` or `cpu`. None clears the device.

    Returns:
        A context manager. It can be entered several times, and used as a decorator.

    Raises:
        PlaceError: At the caller's line, if `device` is not a device.

    Example:
        with place_guard("/node:worker"), device_guard("gpu:0"):
            h = layers.fc(x, 64)  # at /node:worker/gpu:0
    """
    span = caller_span()
    if device is None:
        return _GuardContext(_Guard(None, span, _without_device, scope.NO_DEVICE))
    if not isinstance(device, str) or not device or _NODE_PART.search(device):
        raise PlaceError(
            f"a device must be a string such as gpu:0, not {device!r}",
            span=span,
            hint="place_guard takes places such as /node:worker/gpu:0",
        )
    return _GuardContext(_make_guard(f"/{device}", span))


_NODE_PART = re.compile("/|^(node|job):")


def places_around(op: OpCall) -> tuple[GuardEntry, ...]:
    """Return the places of the open guards for an op, outermost first.

    `merge_entries` of them is the op's place, as if it were inside nested scopes.
    """
    entries: tuple[GuardEntry, ...] = ()
    for open_guard in _open_guards.get():
        entries = open_guard.guard.apply(entries, op)
    return entries


def merge_entries(entries: Sequence[GuardEntry]) -> Place | None:
    """Return the place of nested guards, outermost first; None if there are none."""
    place: Place | None = None
    for entry in entries:
        place = Place.merge(place, entry.place)
    return place


@dataclass(frozen=True, slots=True)
class _Guard:
    """What a guard does to the place of an op.

    With `clear`, it replaces the entries of the guards around it by the result of
    `clear`. Otherwise it adds `place` to them.
    """

    place: Place | PlaceFunction | None
    span: Span
    clear: Callable[[tuple[GuardEntry, ...]], tuple[GuardEntry, ...]] | None = None
    scope: str = ""
    """The guard as text in a named scope of JAX."""

    def apply(
        self, outer: tuple[GuardEntry, ...], op: OpCall
    ) -> tuple[GuardEntry, ...]:
        if self.clear is not None:
            return self.clear(outer)
        place = self.place
        if callable(place):
            place = _to_place(place(op), self.span, "a guard's function returns")
        if place is None or Place.merge(merge_entries(outer), place) == merge_entries(
            outer
        ):
            return outer
        return (*outer, GuardEntry(place, self.span))


class _GuardContext(ContextDecorator):
    """A guard as a context manager. It can be entered again, also inside itself."""

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        jax_scope = scope.open_scope(self._guard.scope, self._guard.span)
        jax_scope.__enter__()
        _open_guards.set(
            (*_open_guards.get(), _OpenGuard(self, self._guard, jax_scope))
        )

    def __exit__(self, *exc_info: Any) -> None:
        """Close only this guard.

        Guards that were opened later can still be open: for example those of a
        generator that did not run to its end.
        """
        guards = _open_guards.get()
        for i in range(len(guards) - 1, -1, -1):
            if guards[i].context is self:
                _open_guards.set((*guards[:i], *guards[i + 1 :]))
                guards[i].jax_scope.__exit__(*exc_info)
                return


@dataclass(frozen=True, slots=True, eq=False)
class _OpenGuard:
    """A guard that is open, the context manager that opened it, and its JAX scope."""

    context: _GuardContext
    guard: _Guard
    jax_scope: AbstractContextManager[object]


_open_guards: ContextVar[tuple[_OpenGuard, ...]] = ContextVar(
    "placer.guards", default=()
)


def _make_guard(place: str | Place | PlaceFunction | None, span: Span) -> _Guard:
    if place is None:
        return _Guard(None, span, lambda outer: (), scope.CLEAR)
    if callable(place):
        return _Guard(place, span, scope=scope.FUNCTION)
    parsed = _to_place(place, span, "a guard takes")
    return _Guard(parsed, span, scope=str(parsed or ""))


def _to_place(place: object, span: Span, what: str) -> Place | None:
    """Return a place string, or a place, as a place; None if it is empty."""
    if isinstance(place, str) and place:
        return Place.parse(place, span=span)
    if isinstance(place, Place):
        return place if place != Place() else None
    if place is None or place == "":
        return None
    raise PlaceError(
        f"{what} a place or None, not {place!r}",
        span=span,
        hint="write for example /node:worker/gpu:0-7",
    )


def _without_device(outer: tuple[GuardEntry, ...]) -> tuple[GuardEntry, ...]:
    place = merge_entries(outer)
    if place is None or place.device is None:
        return outer
    if place.node is None:
        return ()
    return (GuardEntry(Place(place.node, place.node_ids), outer[-1].span),)
