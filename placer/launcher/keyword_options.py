"""The options of a run that are given to a function as keyword arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from placer.errors import PlacerError
from placer.runtime.run.options import OPTIONS, Options, read_options


def read_run_options(given: Mapping[str, Any], *, of_spec: bool) -> Options:
    """Return the options of keyword arguments.

    `of_spec` is whether the function also compiles the spec. Raises PlacerError for an
    option that does not exist; its hint says how to set the key of a spec of that name.
    """
    known = {option.name for option in OPTIONS}
    for name, value in given.items():
        if name not in known and (hint := _hint(name, value, known, of_spec=of_spec)):
            raise PlacerError(f"there is no option '{name}'", hint=hint)
    return read_options(given)


def _hint(
    name: str, value: object, known: Collection[str], *, of_spec: bool
) -> str | None:
    """Return how to set the key of a spec, or the number of nodes, of a name."""
    from placer.spec.setting_names import find_node_kind, find_setting

    if (kind := find_node_kind(name)) is not None:
        instead = f"nodes={{{kind!r}: {value!r}}}"
    elif (path := find_setting(name, known)) is not None:
        instead = f"overrides={{{path!r}: {value!r}}}"
    else:
        return None
    if of_spec:
        return f"did you mean {instead}?"
    return f"a build is compiled already: compile its spec again with {instead}"
