"""Reads the argument `overrides` of `placer.compile`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from placer.compiler.frontend.python.tree import to_node
from placer.compiler.frontend.yaml.overrides import Override, read_override, split_key
from placer.system.callsite import call_error, caller_span

if TYPE_CHECKING:
    from placer.compiler.frontend.python.program import Program

Overrides = Mapping[str, object] | Iterable[str]
"""Values by key, such as `{"train.epochs": 5}`, or texts such as `"train.epochs=5"`."""


def read_overrides(
    overrides: Overrides | None, program: Program | None
) -> Sequence[Override]:
    """Return the overrides for a spec, in order. `program` is the spec, if it is in
    Python. Raises SpecError at the caller's line for a mapping, otherwise at the
    position in the text."""
    if overrides is None:
        return ()
    if isinstance(overrides, str):
        raise call_error(
            "'overrides' must be a mapping from keys to values, or a list of texts",
            hint='write overrides={"train.epochs": 5} or ["train.epochs=5"]',
        )
    if not isinstance(overrides, Mapping):
        return [read_override(text) for text in overrides]
    span = caller_span()
    return [
        Override(
            split_key(str(key), span, each_at=False), to_node(value, span, program)
        )
        for key, value in overrides.items()
    ]
