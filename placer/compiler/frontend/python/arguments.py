"""Describes the arguments of `placer.trace` as terms of a spec; names parameters."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from placer.compiler.frontend.entries.names import is_name
from placer.compiler.frontend.entries.op_parameters import widen
from placer.compiler.frontend.python.variable import Variable
from placer.compiler.graph.structural_ops import VALUE_SUFFIXES
from placer.errors import SpecError, did_you_mean
from placer.place.types import FLOATS, TensorType


@dataclass(slots=True, eq=False)
class Leaf:
    """A value of the program, or an array that becomes a parameter, inside an argument.

    Attributes:
        path: The names that lead to it, starting with the name of the argument.
        key: The key of the parameter; None for a value.
        is_state: Whether it is state, which the function assigns in training.
    """

    value: Any
    path: tuple[str, ...]
    key: str | None = None
    is_state: bool = False

    @property
    def path_text(self) -> str:
        return _show(self.path)

    def type(self, wide: bool) -> TensorType:
        """Return the type of the value in the graph."""
        if isinstance(self.value, Variable):
            return self.value.type
        dtype = str(self.value.dtype)
        kind = TensorType("float32" if dtype == "float64" else dtype, self.value.shape)
        return widen(kind, wide)


@dataclass(frozen=True, slots=True)
class State:
    """A part of an argument that a library keeps as state.

    `said` is the verb phrase that an error says about it.
    """

    path: tuple[str, ...]
    said: str


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

    def pattern_of(self, path: tuple[str, ...]) -> str:
        """Return a glob that matches the parameters at and below a path."""
        leaf = self._leaves_in(path)[0]
        assert leaf.key is not None, path
        below = leaf.path[len(path) :]
        return f"{leaf.key.removesuffix(_joined(below))}*" if below else leaf.key

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
    from placer.ops.functions import arguments as regions
    from placer.ops.functions.kept_state import find_state

    writer = _TermBuilder(fn, regions, wide, assigned, state_argument)
    named = list(zip(_argument_names(fn, args), args, strict=True))
    if state_argument is not None and state_argument not in dict(named):
        message = f"'{fn.__name__}' has no argument '{state_argument}'"
        raise SpecError(message, hint=did_you_mean(state_argument, dict(named)))
    terms = [writer.term(arg, (name,)) for name, arg in named]
    writer.pytrees += [((name,), arg) for name, arg in named]
    _set_keys([x for x in writer.leaves if not isinstance(x.value, Variable)])
    state = [
        State(path, said)
        for name, pytree in writer.pytrees
        for path, said in find_state(pytree, name)
    ]
    return Arguments(terms, writer.leaves, state, writer.assignable)


class _TermBuilder:
    """Builds the terms of arguments, and collects their leaves."""

    def __init__(
        self,
        fn: Callable[..., Any],
        regions: Any,
        wide: bool,
        assigned: Collection[str],
        state_argument: str | None,
    ) -> None:
        self.leaves: list[Leaf] = []
        self.assignable: set[str] = set()
        self._assigned = assigned
        self._state_argument = state_argument
        self.pytrees: list[tuple[tuple[str, ...], Any]] = []
        """Paths and pytrees: arguments, or results of arguments that are functions."""
        self._regions = regions
        self._wide = wide
        self._globals = regions.globals_of(fn)
        self._file = inspect.unwrap(fn).__code__.co_filename.rpartition("/")[2]

    def term(self, arg: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if path == (self._state_argument,):
            return {"state": self._template_term(arg, path)}
        if isinstance(arg, Variable):
            return {"in": self._add_leaf(arg, path)}
        if arg is None or isinstance(arg, bool | int | float | str):
            return {"value": arg}
        if isinstance(arg, Real):  # A numpy number.
            return {"value": int(arg) if isinstance(arg, Integral) else float(arg)}
        if type(arg) in (list, tuple):
            kind = type(arg).__name__
            items = [self.term(each, (*path, str(i))) for i, each in enumerate(arg)]
            return {kind: items}
        if type(arg) is dict:
            for key in arg:
                if not isinstance(key, str):
                    message = f"{_show(path)} has the key {key!r}; keys must be strings"
                    raise SpecError(message)
            # Sorted, as JAX does when it flattens a dict.
            return {"dict": {k: self.term(arg[k], (*path, k)) for k in sorted(arg)}}
        if hasattr(arg, "shape") and hasattr(arg, "dtype"):
            if str(arg.dtype) not in FLOATS:
                raise SpecError(
                    f"{_show(path)} is an array of {arg.dtype}, but a parameter must"
                    " be an array of floats",
                    hint=f"create it in {self._file}, or pass it as an input",
                )
            return {"param": self._add_leaf(arg, path)}
        return self._template_term(arg, path)

    def _template_term(self, arg: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """Return the term of a pytree that is a global name in the function's file."""
        shown = _show(path)
        names = [k for k, each in self._globals.items() if each is arg and is_name(k)]
        if not names:
            raise SpecError(
                f"{shown} is {type(arg).__name__}, and {self._file} has no name for"
                " it, so a node cannot create it again",
                hint="define a function at the top level of the file that returns it,"
                f" and pass this function: def {path[0]}(): return …",
            )
        pytree = arg
        if inspect.isfunction(arg):
            try:
                inspect.signature(arg).bind()
            except TypeError as error:
                message = f"{shown} is the function '{names[0]}', which needs arguments"
                hint = "pass a function that returns the pytree and needs no arguments"
                raise SpecError(message, hint=hint) from error
            pytree = self._regions.call_with_precision(arg, self._wide)
        self.pytrees.append((path, pytree))
        is_parameter = self._regions.parameter_mask(pytree)
        is_variable = self._regions.could_be_state(pytree)
        state: list[str] = []
        for inner, leaf in self._regions.leaves_with_paths(pytree):
            if isinstance(leaf, Variable):
                raise SpecError(f"{_show((*path, *inner))} is a value of the program")
            full = ".".join((*path, *inner))
            is_state = path == (self._state_argument,)
            could_be = next(is_variable)
            if could_be or (is_state and self._regions.is_float_array(leaf)):
                self.assignable.add(full)
                if full in self._assigned:
                    state.append(".".join(inner))
                    self._add_leaf(leaf, (*path, *inner)).is_state = True
            if next(is_parameter) and not is_state:
                self._add_leaf(leaf, (*path, *inner))
        return {"make": [names[0], *state] if state else names[0]}

    def _add_leaf(self, value: Any, path: tuple[str, ...]) -> Leaf:
        for other in self.leaves:
            if other.value is value and not isinstance(value, Variable):
                raise SpecError(
                    f"{_show(path)} and {other.path_text} are the same array, but"
                    " would become two parameters",
                    hint="pass the array once, or copy it",
                )
        self.leaves.append(Leaf(value, path))
        return self.leaves[-1]


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


def _show(path: Sequence[str]) -> str:
    """Return a path for messages, such as `p.a['b.c']`. It is unique for each path."""
    return path[0] + "".join(
        f".{key}" if re.fullmatch(r"\w+", key) else f"[{key!r}]" for key in path[1:]
    )


def _joined(path: Sequence[str]) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", "_".join(path)) or "_"


_RESERVED = re.compile(r"(out|mid)[0-9]+|new|(training|evaluation)[0-9]*")
"""Names that the op uses for other values."""


def _set_keys(parameters: Sequence[Leaf]) -> None:
    """Give each parameter a key. Raises SpecError if two parameters have the same key.
    The key is the path. It starts with the argument's name if several arguments have
    parameters."""
    only_one = len({leaf.path[0] for leaf in parameters}) == 1
    leaf_of: dict[str, Leaf] = {}
    for leaf in parameters:
        path = leaf.path[1:] if only_one and len(leaf.path) > 1 else leaf.path
        key = _joined(path)
        key = f"p{key}" if key[0].isdigit() else key
        if key in VALUE_SUFFIXES or _RESERVED.fullmatch(key) or not is_name(key):
            key = f"{key}_"
        if not is_name(key):
            raise SpecError(
                f"the parameter at {leaf.path_text} would be called '{key}', which has"
                " more than 64 characters",
                hint="pass parts of the model as separate arguments",
            )
        if key in leaf_of:
            raise SpecError(
                f"the parameters at {leaf_of[key].path_text} and {leaf.path_text} would"
                f" both be called '{key}'",
                hint="rename one of them",
            )
        leaf_of[key] = leaf
        leaf.key = key
