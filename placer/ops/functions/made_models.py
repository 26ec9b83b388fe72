"""Makes the pytree that the file of a function has under a name, as a template."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from placer.errors import PlacerError, did_you_mean
from placer.ops.functions.library_leaves import is_array, parameter_mask, stream_leaves
from placer.ops.functions.mode import widest_float
from placer.ops.functions.paths import leaves_with_paths
from placer.ops.functions.template import Template
from placer.ops.special.exported_jax import call_untraced, in_evaluation
from placer.place.types import FLOATS, TensorType

Made = str | Mapping[str, Any]
"""The content of a term `make`: a name, or a mapping with `fn`, `with` and `state`."""


def make_template(
    fn: Callable[..., Any],
    made: Made,
    *,
    training: bool = False,
    is_state: bool = False,
) -> Template:
    """Return the template of a pytree that the file of `fn` makes.

    A function is only traced for shapes and dtypes, unless its pytree has arrays that are
    not parameters: their values are needed.

    Args:
        made: the content of its term.
        training: unless true, modules are switched to evaluation.
        is_state: whether it is state, without parameters.
    """
    content = {"fn": made} if isinstance(made, str) else made
    name, state = content["fn"], content.get("state", ())
    pytree = globals_of(fn).get(name)
    if pytree is None:
        raise PlacerError(
            f"the file of '{fn.__name__}' has no '{name}'",
            hint=did_you_mean(name, globals_of(fn)),
        )
    if "with" in content:
        pytree = _call_with(pytree, plain_value({"dict": content["with"]}))

    def split() -> Template:
        own = pytree() if inspect.isfunction(pytree) else pytree
        return _split_pytree(
            own if training else in_evaluation(own), state, not is_state
        )

    if not inspect.isfunction(pytree):
        return split()
    templates: list[Template] = []
    jax.eval_shape(lambda: templates.append(split()))
    (template,) = templates
    if any(is_array(x) and not isinstance(x, TensorType) for x in template.leaves):
        template = call_untraced(split)
    return template


def _split_pytree(
    pytree: Any, state: Sequence[str] = (), trained: bool = True
) -> Template:
    """Return the template of a pytree, with the types of its parameters and its state.

    `state` are the paths of its state. Unless `trained`, it has no parameters.
    """
    leaves, structure = jax.tree.flatten(pytree)
    mask = (is_one and trained for is_one in parameter_mask(pytree))
    pairs = zip(leaves, mask, strict=True)
    typed = [_stored_type(leaf) if is_one else leaf for leaf, is_one in pairs]
    for at, leaf in stream_leaves(pytree):
        typed[at] = leaf
    if state:
        paths = [".".join(path) for path, _ in leaves_with_paths(pytree)]
        for at, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
            if path in state:
                typed[at] = _stored_type(leaf)
    return Template(structure, typed)


def _stored_type(array: Any) -> TensorType:
    """Return the stored type of a parameter or of state.

    Floats are stored as float64, if enabled. Otherwise 64-bit numbers are cut to 32 bits.
    """
    widest, dtype = widest_float(), str(array.dtype)
    if dtype not in FLOATS:
        stored = str(jax.dtypes.canonicalize_dtype(dtype))
    else:
        stored = widest if "float64" in (widest, dtype) else dtype
    return TensorType(stored, tuple(array.shape))


def globals_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the global names of the file of a function."""
    function: Any = inspect.unwrap(fn)
    names = getattr(function, "__globals__", None)
    return names if isinstance(names, dict) else {}


def plain_value(term: Mapping[str, Any]) -> Any:
    """Return the plain Python value of a term of a configuration."""
    ((key, content),) = term.items()
    match key:
        case "list":
            return [plain_value(each) for each in content]
        case "tuple":
            return tuple(plain_value(each) for each in content)
        case "dict":
            return {name: plain_value(each) for name, each in content.items()}
    assert key == "value", key
    return content


def _call_with(
    make: Callable[..., Any], config: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return a function without arguments that calls `make` with a configuration."""

    def made() -> Any:
        return make(**config)

    return made
