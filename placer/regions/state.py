"""State that a traced function changes: the change would be lost.

A function is traced for its results alone. What it assigns to its arguments (a variable
of Flax nnx, an entry of a dict), and what Flax linen and Equinox return as new state, is
not there in the next step.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from placer.errors import PlacerError
from placer.regions.flatten import caller_line

Leaves = dict[str, Any]
"""The leaves of arguments by their paths, as `model.norm.mean`."""


def leaves(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Leaves, Any]:
    """The leaves of arguments of `fn`, and their structure. Without streams of random
    numbers: what is drawn from them is looked for by itself (`placer.regions.random_draws`).
    An argument that cannot be taken apart any more, as a `State` of Equinox after it was
    set, is a leaf."""
    names = list(inspect.signature(fn).parameters)
    found: Leaves = {}
    structures = []
    for at, arg in enumerate(args):
        try:
            flat, structure = jax.tree_util.tree_flatten_with_path(arg, _is_stream)
        except ValueError:
            flat, structure = [((), arg)], None
        structures.append(structure)
        for path, leaf in flat:
            if not _is_stream(leaf):
                words = [jax.tree_util.keystr((key,), simple=True) for key in path]
                if words and words[-1] == "value":  # of a variable of Flax
                    words.pop()
                found[".".join([names[min(at, len(names) - 1)], *words])] = leaf
    return found, structures


def _is_stream(node: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.RngState)


def changed(before: tuple[Leaves, Any], after: tuple[Leaves, Any]) -> Leaves:
    """The leaves that are others than before, by path. New ones are no change: nothing
    has read them. A change of what is no leaf, as of a counter that is static, is one of
    the argument."""
    (old, structure), (new, structure_now) = before, after
    found = {k: leaf for k, leaf in new.items() if old.get(k, leaf) is not leaf}
    if not found and old.keys() == new.keys() and structure != structure_now:
        found = {next(iter(new), "an argument").partition(".")[0]: None}
    return found


@contextmanager
def watched() -> Iterator[list[PlacerError]]:
    """While this is open, the state that Flax linen and Equinox change is listened to.
    The list has an error for each change."""
    found: list[PlacerError] = []
    with ExitStack() as stack:
        if (linen := sys.modules.get("flax.linen")) is not None:
            stack.enter_context(linen.intercept_methods(_linen(found)))
        if (equinox := sys.modules.get("equinox")) is not None:
            stack.enter_context(_equinox(equinox.nn.State, found))
        yield found


def error(what: str, line: str) -> PlacerError:
    return PlacerError(
        f"{what} is changed{line}, and the change would be lost: each step begins with"
        " it as the file makes it",
        hint="let the model run without changing it (model.eval(),"
        " use_running_average=True or Equinox's inference mode); layers.batch_norm"
        " keeps statistics",
    )


def _linen(found: list[PlacerError]) -> Callable[..., Any]:
    """Looks at the variables of a module before and after `apply`."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if module.scope is None or module.path or module.is_initializing():
            return call(*args, **kwargs)
        before = _mutable(module)
        result = call(*args, **kwargs)
        for path, leaf in _mutable(module).items():
            if before.get(path, leaf) is not leaf:
                found.append(error(path, caller_line()))
        return result

    return intercept


def _mutable(module: Any) -> Leaves:
    """The leaves of a bound linen module's variables that may change."""
    kept = {
        k: v for k, v in module.variables.items() if module.is_mutable_collection(k)
    }
    flat = jax.tree_util.tree_flatten_with_path(kept)[0]
    return {
        ".".join(jax.tree_util.keystr((key,), simple=True) for key in path): leaf
        for path, leaf in flat
    }


_one_at_a_time = threading.RLock()


@contextmanager
def _equinox(state: Any, found: list[PlacerError]) -> Iterator[None]:
    """Hears of `State.set`, which Equinox has no hook for: the class's method is another
    one while this is open."""
    with _one_at_a_time:
        before = state.set

        def heard(self: Any, item: Any, value: Any) -> Any:
            found.append(error("an equinox.nn.State", caller_line()))
            return before(self, item, value)

        state.set = heard
        try:
            yield
        finally:
            state.set = before
