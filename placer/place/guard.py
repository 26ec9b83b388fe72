"""Guards: places that Python code opens around ops.

    with place_guard("/node:worker"):
        with place_guard("/gpu:0-7"):
            ...  # at /node:worker/gpu:0-7

What is open is of one thread and one task, and is as before when the guard is left,
by an exception too. Where JAX is loaded a guard is a scope of JAX as well: what is traced
inside carries its place (`placer.place.scope`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from placer.callsite import caller
from placer.errors import PlaceError, Span
from placer.place import scope
from placer.place.place import Place


@dataclass(frozen=True, slots=True)
class Called:
    """An op as a callable guard sees it: what is written, before it has a place."""

    kind: str
    name: str
    inputs: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)


Chooses = Callable[[Called], "str | Place | None"]
"""What a callable guard is: op -> place, where None says nothing."""


@dataclass(frozen=True, slots=True)
class Said:
    """A place, and the line that says it."""

    place: Place
    span: Span


def place_guard(
    place: str | Place | Chooses | None,
) -> AbstractContextManager[None]:
    """Ops that are made inside stand at `place`, merged into what is open around it.

    A place merges as blocks of a spec do, by `Place.merge`; `""` changes nothing. A
    function is called with each op (`Called`) and returns the op's place, which merges
    by the same rule, or None for nothing. None clears what is open around it. Raises
    PlaceError, at the caller's line, for text that is no place.
    """
    return _Open(_read(place, caller()))


def device_guard(device: str | None) -> AbstractContextManager[None]:
    """Ops that are made inside run on this device, such as `gpu`, `gpu:1` or `cpu`, of
    whatever node is said around it (Paddle's guard). None clears the device.

    Raises PlaceError, at the caller's line, for text that is no device.
    """
    span = caller()
    if device is None:
        return _Open(_Guard(None, span, _without_device, scope.NO_DEVICE))
    if not isinstance(device, str) or not device or _NODES.search(device):
        raise PlaceError(
            f"a device is a text such as gpu:0, not {device!r}",
            span=span,
            hint="place_guard takes places such as /node:worker/gpu:0",
        )
    return _Open(_read(f"/{device}", span))


_NODES = re.compile("/|^(node|job):")


def open_places(op: Called) -> tuple[Said, ...]:
    """What the open guards say of an op, outermost first.

    Merged in this order it is the op's place (`merged`), as that of an op inside of
    blocks that nest.
    """
    found: tuple[Said, ...] = ()
    for entered in _guards.get():
        found = entered.guard.then(found, op)
    return found


def merged(said: Sequence[Said]) -> Place | None:
    """The place that nested guards come to; None where they say nothing."""
    place: Place | None = None
    for each in said:
        place = Place.merge(place, each.place)
    return place


@dataclass(frozen=True, slots=True)
class _Guard:
    """`clears` is what is left of the places around it, `says` what is added."""

    says: Place | Chooses | None
    span: Span
    clears: Callable[[tuple[Said, ...]], tuple[Said, ...]] | None = None
    scope: str = ""
    """What it says in the name of a scope."""

    def then(self, outer: tuple[Said, ...], op: Called) -> tuple[Said, ...]:
        if self.clears is not None:
            return self.clears(outer)
        place = self.says
        if callable(place):
            place = _parsed(place(op), self.span, "a guard's function returns")
        if place is None or Place.merge(merged(outer), place) == merged(outer):
            return outer
        return (*outer, Said(place, self.span))


class _Open(ContextDecorator):
    """A guard as a context, which may be entered again, inside of itself too."""

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        scoped = scope.opened(self._guard.scope, self._guard.span)
        scoped.__enter__()
        _guards.set((*_guards.get(), _Entered(self, self._guard, scoped)))

    def __exit__(self, *of_error: Any) -> None:
        """Leave this one alone, whatever has been opened since and not left, as by a
        generator that was not run to its end."""
        entered = _guards.get()
        for i in range(len(entered) - 1, -1, -1):
            if entered[i].by is self:
                _guards.set((*entered[:i], *entered[i + 1 :]))
                entered[i].scoped.__exit__(*of_error)
                return


@dataclass(frozen=True, slots=True, eq=False)
class _Entered:
    """A guard that is open: by whom, and its scope of JAX."""

    by: _Open
    guard: _Guard
    scoped: AbstractContextManager[object]


_guards: ContextVar[tuple[_Entered, ...]] = ContextVar("placer.guards", default=())


def _read(place: str | Place | Chooses | None, span: Span) -> _Guard:
    if place is None:
        return _Guard(None, span, lambda outer: (), scope.CLEAR)
    if callable(place):
        return _Guard(place, span, scope=scope.FUNCTION)
    parsed = _parsed(place, span, "a guard takes")
    return _Guard(parsed, span, scope=str(parsed or ""))


def _parsed(place: object, span: Span, what: str) -> Place | None:
    """A place that is given as text or as itself; None where it says nothing."""
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


def _without_device(outer: tuple[Said, ...]) -> tuple[Said, ...]:
    place = merged(outer)
    if place is None or place.device is None:
        return outer
    if place.node is None:
        return ()
    return (Said(Place(place.node, place.node_ids), outer[-1].span),)
