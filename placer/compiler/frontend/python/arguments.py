"""The arguments of a trace: their terms, the parameters in them, and state."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from placer.compiler.frontend.python.parameter_keys import Leaf, join_names, set_keys
from placer.compiler.frontend.python.variable import Variable
from placer.errors import SpecError, did_you_mean


@dataclass(frozen=True, slots=True)
class State:
    """A part of an argument that a library keeps as state.

    Attributes:
        path: The names that lead to it.
        said: The verb phrase that an error says about it.
        is_kept: Whether it is certainly not trained: a collection of Flax linen.
    """

    path: tuple[str, ...]
    said: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, as terms.

    Attributes:
        terms: One term for each argument, with a `Leaf` for each value.
        leaves: The values in the terms, in order.
        state: Parts that training must not change, if they have parameters.
        assignable: The paths of leaves that are state if the function assigns them.
    """

    terms: list[Any]
    leaves: list[Leaf]
    state: list[State]
    assignable: set[str]

    def text(self, wide: bool) -> str:
        """Return the terms as JSON for a node, with the types of values."""
        return json.dumps(self.terms, default=lambda leaf: str(leaf.type(wide)))

    def state_keys(self) -> list[str]:
        """Return the keys of the state that the function assigns."""
        return [x.key for x in self.leaves if x.is_state and x.key is not None]

    def keys_in(self, path: tuple[str, ...]) -> list[str]:
        """Return the keys of the parameters at and below a path."""
        leaves = self._leaves_in(path)
        return [x.key for x in leaves if x.key is not None and not x.is_state]

    def patterns_of(self, path: tuple[str, ...]) -> list[str]:
        """Return globs that match the parameters at and below a path, and no others."""
        leaf = self._leaves_in(path)[0]
        assert leaf.key is not None, path
        if leaf.variable:
            return self.keys_in(path)
        below = leaf.path[len(path) :]
        return [f"{leaf.key.removesuffix(join_names(below))}*" if below else leaf.key]

    def _leaves_in(self, path: tuple[str, ...]) -> list[Leaf]:
        return [x for x in self.leaves if x.key and x.path[: len(path)] == path]

    def named_terms(self) -> list[dict[str, Any]]:
        """Return the terms for a spec, with the names of values and parameters."""
        names = json.dumps(self.terms, default=lambda leaf: leaf.key or leaf.value.name)
        terms: list[dict[str, Any]] = json.loads(names)
        return terms


def collect_arguments(
    fn: Callable[..., Any],
    args: Sequence[Any],
    wide: bool,
    assigned: Collection[str] = (),
    state_argument: str | None = None,
) -> Arguments:
    """Return the arguments of a call of `fn` as terms. `wide` is true if the precision
    is float64. `assigned` are the paths of leaves that the function assigns. Raises
    SpecError for an argument that a spec cannot express."""
    from placer.compiler.frontend.python.argument_terms import TermBuilder
    from placer.ops.functions.library_state import COLLECTIONS, find_state

    builder = TermBuilder(fn, wide, assigned, state_argument)
    named = list(zip(_argument_names(fn, args), args, strict=True))
    if state_argument is not None and state_argument not in dict(named):
        message = f"'{fn.__name__}' has no argument '{state_argument}'"
        raise SpecError(message, hint=did_you_mean(state_argument, dict(named)))
    terms = [builder.term(arg, (name,)) for name, arg in named]
    builder.pytrees += [((name,), arg) for name, arg in named]
    set_keys([x for x in builder.leaves if not isinstance(x.value, Variable)])
    state = [
        State(path, said, said in COLLECTIONS)
        for name, pytree in builder.pytrees
        for path, said in find_state(pytree, name)
    ]
    return Arguments(terms, builder.leaves, state, builder.assignable)


def _argument_names(fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[str]:
    from placer.ops.functions.arguments import open_parameters

    passed = dict.fromkeys(open_parameters(fn, len(args)))
    try:
        bound = inspect.signature(fn).bind(*args, **passed)
    except TypeError as error:
        message = f"'{fn.__name__}' cannot be called with these arguments: {error}"
        raise SpecError(message) from error
    for name, value in bound.arguments.items():
        if name in passed:
            continue
        kind = inspect.signature(fn).parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{name}{i}" for i in range(len(value)))
        else:
            yield name
