"""Guards: Python context managers that set the place of the ops inside them.

    with place_guard("/node:worker"):
        with place_guard("/gpu:0-7"):
            ...  # at /node:worker/gpu:0-7

Open guards belong to one thread and one asyncio task. A guard closes when its block
ends, also after an exception. If JAX is loaded, a guard also opens a named scope of
JAX. Equations that are traced inside then have its place (`placer.place.scope`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from placer.errors import PlaceError, Span
from placer.place import scope
from placer.place.place import Place
from placer.system.callsite import caller_span


@dataclass(frozen=True, slots=True)
class OpCall:
    """A call of an op, as callable guards receive it."""

    kind: str
    name: str
    inputs: tuple[str, ...] = ()
    """The names of the operands."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """The attributes as written in the call, without defaults."""


PlaceFunction = Callable[[OpCall], "str | Place | None"]
"""A callable guard: returns the place of an op, or None to leave it unchanged."""


@dataclass(frozen=True, slots=True)
class GuardEntry:
    """The place of an open guard, and the line that opened it."""

    place: Place
    span: Span


Entries = tuple[GuardEntry, ...]
Apply = Callable[[Entries, OpCall], Entries]


def place_guard(
    place: str | Place | PlaceFunction | None,
) -> AbstractContextManager[None]:
    """Set the place of the ops that are called inside the `with` statement.

    Guards nest like scopes of a spec: the places merge field by field, and the inner
    guard wins (`Place.merge`).

    Args:
        place: One of

            - a place string such as `/node:worker/gpu:0`, or a `Place`; `""` has no
              effect;
            - None, which clears the place of the enclosing guards;
            - a function that is called for each op (an object with `kind`, `name`,
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
    return _make_guard(place, caller_span())


def device_guard(device: str | None) -> AbstractContextManager[None]:
    """Set the device of the ops that are called inside the `with` statement.

    The enclosing guards set the node. PaddlePaddle's `fluid.device_guard` has the same
    form.

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
        return _Guard(span, _without_device, scope.NO_DEVICE)
    if not isinstance(device, str) or not device or _NODE_PART.search(device):
        raise PlaceError(
            f"a device must be a string such as gpu:0, not {device!r}",
            span=span,
            hint="use place_guard for places such as /node:worker/gpu:0",
        )
    return _make_guard(f"/{device}", span)


_NODE_PART = re.compile("/|^(node|job):")


def places_around(op: OpCall) -> Entries:
    """Return the places of the open guards for an op, outermost first. `merge_entries`
    combines them to the op's place, as in nested scopes."""
    entries: Entries = ()
    for guard, _ in _open_guards.get():
        entries = guard.apply(entries, op)
    return entries


def merge_entries(entries: Sequence[GuardEntry]) -> Place | None:
    """Return the place of nested guards, outermost first, or None without guards."""
    place: Place | None = None
    for entry in entries:
        place = Place.merge(place, entry.place)
    return place


class _Guard(ContextDecorator):
    """A guard as a context manager. It can be entered several times, even nested.

    Attributes:
        apply: Returns the entries of an op in this guard, given the entries of outer
            guards.
        scope_text: The guard as text in a named scope of JAX.
    """

    def __init__(self, span: Span, apply: Apply, scope_text: str) -> None:
        self.apply = apply
        self._span = span
        self._scope_text = scope_text

    def __enter__(self) -> None:
        jax_scope = scope.open_scope(self._scope_text, self._span)
        jax_scope.__enter__()
        _open_guards.set((*_open_guards.get(), (self, jax_scope)))

    def __exit__(self, *exc_info: Any) -> None:
        """Close only this guard. A suspended generator may have opened later ones."""
        guards = _open_guards.get()
        for i in range(len(guards) - 1, -1, -1):
            guard, jax_scope = guards[i]
            if guard is self:
                _open_guards.set((*guards[:i], *guards[i + 1 :]))
                jax_scope.__exit__(*exc_info)
                return


_open_guards: ContextVar[tuple[tuple[_Guard, AbstractContextManager[object]], ...]]
_open_guards = ContextVar("placer.guards", default=())
"""The open guards, outermost first, each with its JAX scope."""


def _make_guard(place: str | Place | PlaceFunction | None, span: Span) -> _Guard:
    if place is None:
        return _Guard(span, lambda outer, op: (), scope.CLEAR)
    if callable(place):

        def apply(outer: Entries, op: OpCall) -> Entries:
            returned = _to_place(place(op), span, "a guard's function must return")
            return _add_place(outer, returned, span)

        return _Guard(span, apply, scope.FUNCTION)
    parsed = _to_place(place, span, "a guard needs")
    text = str(parsed or "")
    return _Guard(span, lambda outer, op: _add_place(outer, parsed, span), text)


def _add_place(outer: Entries, place: Place | None, span: Span) -> Entries:
    """Return the entries with a place added, unless it is empty."""
    around = merge_entries(outer)
    if place is None or Place.merge(around, place) == around:
        return outer
    return (*outer, GuardEntry(place, span))


def _to_place(place: object, span: Span, what: str) -> Place | None:
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


def _without_device(outer: Entries, op: OpCall) -> Entries:
    place = merge_entries(outer)
    if place is None or place.device is None:
        return outer
    if place.node is None:
        return ()
    return (GuardEntry(Place(place.node, place.node_ids), outer[-1].span),)
