"""Finds state that a traced function changes, because the change would be lost.

A function is traced only for its results. Values assigned to its arguments (a variable
of Flax nnx, an entry of a dict) do not reach the next step. Neither does new state that
Flax linen and Equinox return.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from placer.errors import PlacerError
from placer.ops.functions.paths import leaves_with_paths
from placer.ops.functions.user_lines import caller_line

Leaves = dict[str, Any]
"""The leaves of arguments by path, such as `model.norm.mean`."""


def leaves_by_path(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Leaves, Any]:
    """Return the leaves of the arguments of `fn` by path, and the pytree structures.

    Streams of random numbers are omitted; `placer.ops.functions.random_draws` checks
    them. An argument that can no longer be flattened is a leaf, such as a `State` of
    Equinox after a call of `set`.
    """
    names = list(inspect.signature(fn).parameters)
    leaves: Leaves = {}
    structures = []
    for at, arg in enumerate(args):
        try:
            flat = leaves_with_paths(arg, _is_stream)
            structure = jax.tree.structure(arg, _is_stream)
        except ValueError:
            flat, structure = [((), arg)], None
        structures.append(structure)
        name = names[min(at, len(names) - 1)]
        for path, leaf in flat:
            if not _is_stream(leaf):
                leaves[".".join((name, *path))] = leaf
    return leaves, structures


def _is_stream(node: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.RngState)


def changed_leaves(before: tuple[Leaves, Any], after: tuple[Leaves, Any]) -> Leaves:
    """Return the changed leaves, by path.

    New leaves are not changes, because nothing has read them. If only the structure
    changed, such as a static counter, the result is the first argument.
    """
    (old, structure), (new, new_structure) = before, after
    changed = {k: leaf for k, leaf in new.items() if old.get(k, leaf) is not leaf}
    if not changed and old.keys() == new.keys() and structure != new_structure:
        changed = {next(iter(new), "an argument").partition(".")[0]: None}
    return changed


@contextmanager
def watch_state() -> Iterator[list[PlacerError]]:
    """Collect an error for each change of state by Flax linen and Equinox."""
    errors: list[PlacerError] = []
    with ExitStack() as stack:
        if (linen := sys.modules.get("flax.linen")) is not None:
            stack.enter_context(linen.intercept_methods(_linen_interceptor(errors)))
        if (equinox := sys.modules.get("equinox")) is not None:
            stack.enter_context(_watch_equinox(equinox.nn.State, errors))
        yield errors


def state_change_error(what: str, line: str, hint: str) -> PlacerError:
    """Return the error for a change of the state `what` at a line of user code."""
    return PlacerError(
        f"{what} is changed{line}, and the change would be lost: each step starts"
        " with its value from the file",
        hint=hint,
    )


def hint_of_change(pytrees: Iterable[Any]) -> str:
    """Return how to keep a change of one of these arguments, or to avoid it."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and any(isinstance(each, nnx.Module) for each in pytrees):
        return (
            "assign only arrays of an nnx.Variable other than nnx.Param, and leave"
            " model.eval() out: placer switches modules in evaluation"
        )
    return (
        "pass what changes as an argument of its own that is a global name of the file,"
        " name it with state=, and return a pair: the results, and its new value"
    )


def _linen_interceptor(errors: list[PlacerError]) -> Callable[..., Any]:
    """Return an interceptor that compares variables before and after `apply`."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if module.scope is None or module.path or module.is_initializing():
            return call(*args, **kwargs)
        before = _mutable_leaves(module)
        result = call(*args, **kwargs)
        for path, leaf in _mutable_leaves(module).items():
            if before.get(path, leaf) is not leaf:
                errors.append(_linen_error(path))
        return result

    return intercept


def _linen_error(path: str) -> PlacerError:
    collection = path.partition(".")[0]
    return state_change_error(
        path,
        caller_line(),
        f"pass '{collection}' as an argument of its own, name it with state=, and return"
        f" the results and new['{collection}'], where (results, new) = module.apply(…,"
        f" mutable=['{collection}'])",
    )


def _mutable_leaves(module: Any) -> Leaves:
    """Return the leaves of the mutable variables of a bound linen module, by path."""
    mutable = {
        k: v for k, v in module.variables.items() if module.is_mutable_collection(k)
    }
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree.leaves_with_path(mutable)
    }


# Threads of one process may trace at the same time, and the class's method is replaced
# for all of them.
_equinox_lock = threading.RLock()


@contextmanager
def _watch_equinox(state: Any, errors: list[PlacerError]) -> Iterator[None]:
    """Collect an error for each call of `State.set`, which is replaced temporarily."""
    with _equinox_lock:
        original = state.set

        def set_and_record(self: Any, item: Any, value: Any) -> Any:
            errors.append(
                state_change_error(
                    "an equinox.nn.State",
                    caller_line(),
                    "pass the State as an argument of its own, name it with state=, and"
                    " return the results and the new State",
                )
            )
            return original(self, item, value)

        state.set = set_and_record
        try:
            yield
        finally:
            state.set = original
