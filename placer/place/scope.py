"""What guards say, as names of scopes that JAX keeps with every equation.

`/node:worker:0/gpu:0-1` is `placer@node:worker:0@gpu:0-1`. JAX writes what it makes of an
equation around the name, as in `transpose(jvp(placer@cpu))/placer@node:worker`, and
leaves the name itself as it is.
"""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

from placer.errors import Span
from placer.place.place import Place

CLEAR = "!clear"
"""What `place_guard(None)` says."""
NO_DEVICE = "!device"
"""What `device_guard(None)` says."""
FUNCTION = "!function"
"""A guard that is a function, which an equation cannot be asked by."""

_NAME = re.compile(r"placer(![a-z]+|(?:@[a-z0-9_:*,-]+)+)")

heard: ContextVar[dict[str, Span] | None] = ContextVar("placer.heard", default=None)
"""Where something is traced: the lines of the guards that are opened meanwhile."""


def opened(said: str, span: Span) -> AbstractContextManager[object]:
    """A scope of JAX of that name; nothing where JAX has not been imported."""
    jax = sys.modules.get("jax")
    if not said or not hasattr(jax, "named_scope"):
        return nullcontext()
    lines = heard.get()
    if lines is not None:
        lines[said] = span
    scope: AbstractContextManager[object] = jax.named_scope(  # type: ignore[union-attr]
        f"placer{said.replace('/', '@')}"
    )
    return scope


def scopes(stack: str) -> tuple[str, ...]:
    """What guards said in the name of an equation, outermost first: places, and the
    words above. What is cleared is left out."""
    return joined((), tuple(each.replace("@", "/") for each in _NAME.findall(stack)))


def joined(outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[str, ...]:
    """What guards say inside of others."""
    both = (*outer, *inner)
    cleared = [i for i, said in enumerate(both) if said == CLEAR]
    both = both[cleared[-1] :] if cleared else both
    return tuple(s for i, s in enumerate(both) if i == 0 or s != both[i - 1])


def place_of(said: tuple[str, ...]) -> Place | None:
    """The place that guards come to by themselves, whatever is around them."""
    place: Place | None = None
    for each in said:
        if each == CLEAR:
            place = None
        elif each == NO_DEVICE:
            place = place and Place(place.node, place.node_ids)
        else:
            place = Place.merge(place, Place.parse(each))
    return place
