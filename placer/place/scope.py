"""Guards as named scopes, which JAX stores in the name stack of each equation.

`/node:worker:0/gpu:0-1` is written `placer@node:worker:0@gpu:0-1`. Transformations of
JAX wrap these names, as in `transpose(jvp(placer@cpu))/placer@node:worker`, but do not
change them.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

from placer.errors import Span
from placer.place.place import Place

CLEAR = "!clear"
"""The scope of `place_guard(None)`."""
NO_DEVICE = "!device"
"""The scope of `device_guard(None)`."""
FUNCTION = "!function"
"""The scope of a guard that is a function: it cannot be called for an equation."""

_NAME = re.compile(r"placer(![a-z]+|(?:@[a-z0-9_:*,-]+)+)")

guard_lines: ContextVar[dict[str, Span] | None] = ContextVar(
    "placer.heard", default=None
)
"""While a function is traced: the lines that opened its guards, by scope text."""


def open_scope(text: str, span: Span) -> AbstractContextManager[object]:
    """Return the JAX scope of a guard, or a null context if JAX is not loaded."""
    jax = sys.modules.get("jax")
    if not text or not hasattr(jax, "named_scope"):
        return nullcontext()
    lines = guard_lines.get()
    if lines is not None:
        lines[text] = span
    scope: AbstractContextManager[object] = jax.named_scope(  # type: ignore[union-attr]
        f"placer{text.replace('/', '@')}"
    )
    return scope


def parse_name_stack(stack: str) -> tuple[str, ...]:
    """Return the guards in the name stack of an equation, outermost first. Each is a
    place string, or `CLEAR`, `NO_DEVICE` or `FUNCTION`. Guards outside the last `CLEAR`
    are left out."""
    return nest_guards(
        (), tuple(each.replace("@", "/") for each in _NAME.findall(stack))
    )


def nest_guards(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    """Join guards, without guards outside the last `CLEAR` and without repeats."""
    both = (*outer, *inner)
    cleared = [i for i, guard in enumerate(both) if guard == CLEAR]
    both = both[cleared[-1] :] if cleared else both
    return tuple(g for i, g in enumerate(both) if i == 0 or g != both[i - 1])


def place_of(guards: tuple[str, ...]) -> Place | None:
    """Return the place of nested guards, ignoring guards around them."""
    place: Place | None = None
    for each in guards:
        if each == CLEAR:
            place = None
        elif each == NO_DEVICE:
            place = place and Place(place.node, place.node_ids)
        else:
            place = Place.merge(place, Place.parse(each))
    return place
