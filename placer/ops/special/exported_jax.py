"""Functions that an exported model calls besides its ops."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import jax
import jax.numpy as jnp

from .random_jax import jax_keys


def as_table(
    rows: jax.Array, present: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return indices into a table of the looked-up rows (-1 if absent), and the table."""
    leading = rows.shape[:-1]
    table = rows.reshape(-1, rows.shape[-1])
    indices = jnp.arange(table.shape[0], dtype=jnp.int32).reshape(leading)
    return indices if present is None else jnp.where(present, indices, -1), table


def outputs_of(
    fn: Callable[..., Any],
    params: dict[str, jax.Array],
    state: dict[str, jax.Array],
    *inputs: jax.Array,
    rng: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Return the outputs of a function in an evaluation, then its state."""
    outputs, state = fn(params, state, *inputs, rng=rng, training=False)
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return *outputs, *state.values()


def row_keys_of(rows: int, stream: int) -> jax.Array:
    """Return a JAX key for each row, as in step 0."""
    numbers = jnp.arange(rows, dtype=jnp.uint32)
    position = jnp.stack([jnp.zeros_like(numbers), numbers], axis=-1)
    return jax_keys(position, stream)


def results_of(fn: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Return the results of a function that returns them and its new state."""
    return fn(*arguments, **keywords)[0]


def with_leaves(pytree: Any, leaves: dict[int, jax.Array], /, **arguments: Any) -> Any:
    """Return a pytree with its numbered leaves replaced by other arrays.

    `pytree` may also be a function that returns the pytree for these arguments.
    """
    made = _made(pytree, arguments)
    own, structure = jax.tree.flatten(made)
    return jax.tree.unflatten(structure, [leaves.get(i, x) for i, x in enumerate(own)])


def in_evaluation(pytree: Any, /, **arguments: Any) -> Any:
    """Return a pytree with its modules of Flax nnx and of Equinox in evaluation.

    `pytree` may also be a function that returns the pytree for these arguments.
    """
    pytree = _made(pytree, arguments)
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if nnx is not None:
        off = {"deterministic": True, "use_running_average": True}

        def view(node: Any) -> Any:
            is_module = isinstance(node, nnx.Module)
            if not is_module:
                return node
            seen: Any = nnx.view(node, raise_if_not_found=False, **off)
            seen.eval()  # `view` does not know attributes of other libraries
            return seen

        pytree = jax.tree.map(
            view, pytree, is_leaf=lambda node: isinstance(node, nnx.Module)
        )
    if equinox is not None:

        def has_inference(node: Any) -> bool:
            is_module = isinstance(node, equinox.Module)
            return is_module and hasattr(node, "inference")

        flat = jax.tree.leaves(pytree, is_leaf=has_inference)
        if any(map(has_inference, flat)):
            pytree = equinox.nn.inference_mode(pytree)
    return pytree


def _made(pytree: Any, arguments: dict[str, Any]) -> Any:
    """Return a pytree, or the one that a function returns for these arguments."""
    if inspect.isfunction(pytree):
        return call_untraced(pytree, **arguments)
    return pytree


def call_untraced(make: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call a function in another thread, where JAX traces nothing.

    So arrays that it makes have values, and checks of values in it do not become a part
    of the model.
    """
    # Equinox's error_if fails inside jax.ensure_compile_time_eval.
    wide = jax.dtypes.canonicalize_dtype("float64") == jnp.float64

    def call() -> Any:
        with jax.enable_x64(wide):
            return make(**arguments)

    with ThreadPoolExecutor(1, thread_name_prefix="model") as thread:
        return thread.submit(copy_context().run, call).result()
