"""Makes the jaxpr of a function, with the new values of its state as results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from placer.errors import PlacerError
from placer.ops.functions.arguments import open_parameters
from placer.ops.functions.batch_types import abstract_values
from placer.ops.functions.changed_state import Leaves, changed_leaves, leaves_by_path
from placer.ops.functions.complex_values import is_complex
from placer.ops.functions.mode import Mode
from placer.ops.functions.paths import leaves_with_paths
from placer.ops.functions.replica_binding import refuse_second_binding
from placer.ops.functions.template import StreamLeaf, Template


def make_jaxpr(
    fn: Callable[..., Any],
    arguments: Template,
    rows: int,
    mode: Mode,
    state: Sequence[str] = (),
    state_at: int | None = None,
    *,
    change: str | None = None,
) -> tuple[Any, Any, Leaves]:
    """Return a function's jaxpr, its results, and the arguments that it changes.

    The jaxpr also returns the new values of `state`. With `state_at`, the function returns
    a new value of this argument after its results. With `change`, it returns only the
    new value of this leaf.
    """
    changed: Leaves = {}
    training = mode.training
    # The unfilled arguments have a `StreamLeaf` for each seed generator of Keras.
    unfilled, _ = leaves_by_path(fn, arguments.fill(iter(arguments.types)))
    seeds = {path for path, x in unfilled.items() if isinstance(x, StreamLeaf)}

    def of_values(*inputs: Any) -> Any:
        *values, key = inputs
        args = arguments.fill(iter(values), key)
        before = leaves_by_path(fn, args)
        passed = {"key": key, "training": training}
        keywords = {name: passed[name] for name in open_parameters(fn, len(args))}
        returned = fn(*args, **keywords)
        after = leaves_by_path(fn, args)
        if state_at is not None:
            returned, new = _check_pair(fn, returned)
            if training:
                name = list(inspect.signature(fn).parameters)[state_at]
                after[0].update(_new_leaves(fn, name, new, before[0]))
        results = _check_arrays(fn, returned)
        new_values = changed_leaves(before, after)
        changed.update({k: x for k, x in new_values.items() if k not in seeds})
        if change is not None:
            return changed[change]
        return results, [_same_type(x, before[0][x], after[0][x]) for x in state]

    # JAX's messages name the traced function and its line; let them name `fn`.
    of_values.__wrapped__ = inspect.unwrap(fn)  # type: ignore[attr-defined]
    key = jax.eval_shape(lambda: jax.random.key(0))
    inputs = *abstract_values(arguments.types, rows), key
    if mode.parts:
        axes = [(mode.axis, mode.parts)]
        traced = jax.make_jaxpr(of_values, axis_env=axes, return_shape=True)
        with refuse_second_binding(mode.axis):
            closed, returned = traced(*inputs)
    else:
        closed, returned = jax.make_jaxpr(of_values, return_shape=True)(*inputs)
    results = returned if change is not None else returned[0]
    return closed, results, changed


def _check_pair(fn: Callable[..., Any], returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise PlacerError(
            f"'{fn.__name__}' must return its results and its new state",
            hint="end the function with `return results, new_state`",
        )
    return returned


def _new_leaves(
    fn: Callable[..., Any], name: str, new: Any, old: Mapping[str, Any]
) -> Leaves:
    """Return the leaves of a new state by path."""
    leaves = {".".join((name, *path)): leaf for path, leaf in leaves_with_paths(new)}
    for path in leaves:
        if path not in old:
            raise PlacerError(
                f"'{fn.__name__}' returns the state {path}, which its argument does not"
                " have",
                hint=f"return the new value of {name}, or a part of it with the same keys",
            )
    return leaves


def _same_type(path: str, old: Any, new: Any) -> Any:
    """Return the new value of a state; raise PlacerError if its type differs."""
    if not hasattr(new, "dtype") and not isinstance(new, bool | int | float):
        raise PlacerError(
            f"{path} is an array, but the function assigns {new!r:.64}",
            hint="assign an array of the same type and shape",
        )
    new = jax.numpy.asarray(new)
    if (new.dtype, new.shape) != (old.dtype, old.shape):
        raise PlacerError(
            f"{path} is {old.dtype}{list(old.shape)}, but the function assigns"
            f" {new.dtype}{list(new.shape)}",
            hint=f"keep the type of a state: write .astype('{old.dtype}')"
            if new.shape == old.shape
            else "keep the type and the shape of a state",
        )
    # An equation for each state: two of them may have the same value, or a constant.
    return jax.numpy.copy(new)


def _check_arrays(fn: Callable[..., Any], results: Any) -> Any:
    """Return the results; raise PlacerError unless they are arrays."""
    leaves = jax.tree.leaves(results)
    if not leaves:
        hint = "end the function with `return` and its results"
        raise PlacerError(f"'{fn.__name__}' returns nothing", hint=hint)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array | np.ndarray):
            raise PlacerError(
                f"'{fn.__name__}' returns {leaf!r:.64}, which is not an array",
                hint="return only arrays; compute other values outside of the function",
            )
        if is_complex(leaf):
            raise PlacerError(
                f"'{fn.__name__}' returns an array of {leaf.dtype}, but values of a"
                " program are real",
                hint="return its parts: y.real, y.imag",
            )
    return results
