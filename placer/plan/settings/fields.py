"""Field types that specs and plans share. msgspec checks them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
"""A name in a spec."""
# The lookahead rejects a trailing newline, which `$` alone would allow.
ValueName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*(?!\n)$")]
"""A name in a graph: of a value, a parameter or an op kind."""
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, Meta(ge=0)]
"""A number of elements, bytes or FLOPs."""


def doc(text: str) -> Meta:
    """Return the description of a field for the JSON Schema."""
    return Meta(description=text)
