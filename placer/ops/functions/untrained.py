"""Lists the arrays in the arguments of a traced function that are not trained."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from placer.ops.functions.made_models import make_template
from placer.ops.functions.paths import leaves_with_paths


def untrained_arrays(fn: Callable[..., Any], text: str) -> Iterator[str]:
    """Yield the path and the type of each array that is not a parameter.

    These are arrays of other types than floats, such as integers and float8, and variables
    that a library does not train. `text` holds the arguments of `fn`
    (`placer.ops.functions.arguments`).

    Example:
        list(untrained_arrays(apply, '[{"make": "model"}]'))  # ["model.count int32[2]"]
    """
    names = [*inspect.signature(fn).parameters]
    for i, term in enumerate(json.loads(text)):
        yield from _arrays(fn, term, (names[min(i, len(names) - 1)],))


def _arrays(
    fn: Callable[..., Any],
    term: Mapping[str, Any],
    path: tuple[str, ...],
    is_state: bool = False,
) -> Iterator[str]:
    ((key, content),) = term.items()
    match key:
        case "make":
            template = make_template(fn, content, is_state=is_state)
            pytree = jax.tree.unflatten(template.structure, template.leaves)
            for inner, leaf in leaves_with_paths(pytree):
                if _is_plain_array(leaf):
                    shape = ", ".join(map(str, leaf.shape))
                    yield f"{'.'.join((*path, *inner))} {leaf.dtype}[{shape}]"
        case "state":
            yield from _arrays(fn, content, path, is_state=True)
        case "list" | "tuple":
            for i, each in enumerate(content):
                yield from _arrays(fn, each, (*path, str(i)))
        case "dict":
            for name, each in content.items():
                yield from _arrays(fn, each, (*path, name))


def _is_plain_array(leaf: Any) -> bool:
    """Return True for an array of numbers. Parameters are types in a template."""
    if not isinstance(leaf, jax.Array) and type(leaf).__module__ != "numpy":
        return False
    return not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended)
