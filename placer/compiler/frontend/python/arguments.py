"""Describes the arguments of `placer.trace` as terms of a spec; names parameters."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from placer.compiler.frontend.entries.names import is_name, is_parameter_key
from placer.compiler.frontend.entries.op_parameters import graph_type
from placer.compiler.frontend.python.variable import Variable
from placer.compiler.graph.structural_ops import VALUE_SUFFIXES
from placer.errors import SpecError, did_you_mean
from placer.place.types import FLOATS, TensorType
from placer.plan.parameter_differences import find_differences


@dataclass(slots=True, eq=False)
class Leaf:
    """A value of the program, or an array that becomes a parameter, inside an argument.

    Attributes:
        path: The names that lead to it, starting with the name of the argument.
        variable: The path of a variable of Keras, which names its parameter.
        key: The key of the parameter; None for a value.
        is_state: Whether it is state, which the function assigns in training.
    """

    value: Any
    path: tuple[str, ...]
    variable: tuple[str, ...] = ()
    key: str | None = None
    is_state: bool = False

    @property
    def path_text(self) -> str:
        keras = f" ({'/'.join(self.variable)})" if self.variable else ""
        return f"{_show(self.path)}{keras}"

    def type(self, wide: bool) -> TensorType:
        """Return the type of the value in the graph."""
        if isinstance(self.value, Variable):
            return self.value.type
        dtype = str(self.value.dtype)
        kind = TensorType("float32" if dtype == "float64" else dtype, self.value.shape)
        return graph_type(kind, wide)


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
        return [f"{leaf.key.removesuffix(_joined(below))}*" if below else leaf.key]

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
    from placer.ops.functions.kept_state import COLLECTIONS, find_state

    writer = _TermBuilder(fn, regions, wide, assigned, state_argument)
    named = list(zip(_argument_names(fn, args), args, strict=True))
    if state_argument is not None and state_argument not in dict(named):
        message = f"'{fn.__name__}' has no argument '{state_argument}'"
        raise SpecError(message, hint=did_you_mean(state_argument, dict(named)))
    terms = [writer.term(arg, (name,)) for name, arg in named]
    writer.pytrees += [((name,), arg) for name, arg in named]
    set_keys([x for x in writer.leaves if not isinstance(x.value, Variable)])
    state = [
        State(path, said, said in COLLECTIONS)
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
            return {"state": self._made_term(arg, path)}
        if isinstance(arg, Variable):
            return {"in": self._add_leaf(arg, path)}
        if arg is None or isinstance(arg, bool | int | float | str):
            return {"value": arg}
        if isinstance(arg, Real):  # A numpy number.
            return {"value": int(arg) if isinstance(arg, Integral) else float(arg)}
        if type(arg) is tuple and _is_configured(arg):
            return self._made_term(arg, path)
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
            if "complex" in str(arg.dtype):
                raise self._complex_error(path)
            if str(arg.dtype) not in FLOATS:
                raise SpecError(
                    f"{_show(path)} is an array of {arg.dtype}, but a parameter must"
                    " be an array of floats",
                    hint=f"create it in {self._file}, or pass it as an input",
                )
            return {"param": self._add_leaf(arg, path)}
        return self._made_term(arg, path)

    def _made_term(self, arg: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """Return the term of a global name, or of a function and its configuration."""
        if type(arg) is tuple and _is_configured(arg):
            return self._template_term(arg[0], path, self._config_terms(arg[1], path))
        return self._template_term(arg, path)

    def _complex_error(self, path: tuple[str, ...]) -> SpecError:
        return SpecError(
            f"{_show(path)} is a complex array, but parameters must be real",
            hint="store its real and its imaginary part as two parameters; if it is a"
            f" constant, read it from a global name of {self._file}",
        )

    def _config_terms(
        self, config: dict[Any, Any], path: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the terms of the arguments of a function that makes a model."""
        for key in config:
            if not isinstance(key, str) or not is_parameter_key(key):
                raise SpecError(
                    f"the configuration of {_show(path)} has the key {key!r}, which"
                    " cannot be the name of an argument"
                )
        return {k: self._config_term(v, (*path, k)) for k, v in config.items()}

    def _config_term(self, value: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if type(value) in (list, tuple):
            kind = type(value).__name__
            numbered = enumerate(value)
            return {kind: [self._config_term(x, (*path, f"{i}")) for i, x in numbered]}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            pairs = value.items()
            return {"dict": {k: self._config_term(x, (*path, k)) for k, x in pairs}}
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise SpecError(
            f"{_show(path)} is {type(value).__name__}, but the configuration of a model"
            " must be plain data",
            hint="pass numbers, strings, None, lists, tuples and dicts with strings as"
            f" keys, and create everything else in {self._file}",
        )

    def _template_term(
        self, arg: Any, path: tuple[str, ...], config: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the term of a pytree that is a global name in the function's file.

        With `config`, a function returns it for these arguments.
        """
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
            given = self._regions.plain_value({"dict": config or {}})
            try:
                inspect.signature(arg).bind(**given)
            except TypeError as error:
                message = f"{shown} is the function '{names[0]}', which needs arguments"
                hint = (
                    f"pass them as plain data: ({names[0]}, {{...}}); or pass a function"
                    " that needs none"
                )
                if config is not None:
                    message = f"{shown}: '{names[0]}' cannot be called: {error}"
                    hint = f"arguments of '{names[0]}' are the keys of the dict"
                raise SpecError(message, hint=hint) from error
            call = self._regions.call_with(arg, given)
            pytree = self._regions.call_with_precision(call, self._wide)
        self.pytrees.append((path, pytree))
        for inner in self._regions.complex_leaves(pytree):
            raise self._complex_error((*path, *inner))
        is_parameter = self._regions.parameter_mask(pytree)
        is_variable = self._regions.could_be_state(pytree)
        state: list[str] = []
        for inner, leaf in self._regions.leaves_with_paths(pytree):
            if isinstance(leaf, Variable):
                raise SpecError(f"{_show((*path, *inner))} is a value of the program")
            full = ".".join((*path, *inner))
            is_state = path == (self._state_argument,)
            could_be = next(is_variable)
            if could_be or (is_state and self._regions.is_number_array(leaf)):
                self.assignable.add(full)
                if full in self._assigned:
                    state.append(".".join(inner))
                    self._add_leaf(leaf, (*path, *inner)).is_state = True
            if next(is_parameter) and not is_state:
                self._add_leaf(leaf, (*path, *inner))
        made: dict[str, Any] = {"fn": names[0]}
        made |= {} if config is None else {"with": config}
        made |= {"state": state} if state else {}
        return {"make": made if len(made) > 1 else names[0]}

    def _add_leaf(self, value: Any, path: tuple[str, ...]) -> Leaf:
        if not isinstance(value, Variable) and 0 in value.shape:
            raise SpecError(
                f"{_show(path)} is an empty array: its shape is {tuple(value.shape)}",
                hint="remove it, or pass None in its place: a parameter needs elements",
            )
        for other in self.leaves:
            if other.value is value and not isinstance(value, Variable):
                raise SpecError(
                    f"{_show(path)} and {other.path_text} are the same array, but"
                    " would become two parameters",
                    hint="pass the array once, or copy it",
                )
        variable = self._regions.path_of_variable(value)
        self.leaves.append(Leaf(value, path, variable))
        return self.leaves[-1]


def _is_configured(pair: tuple[Any, ...]) -> bool:
    """Return True for a function that takes arguments, and a dict with them."""
    if len(pair) != 2 or not inspect.isfunction(pair[0]) or type(pair[1]) is not dict:
        return False
    return bool(inspect.signature(pair[0]).parameters)


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


def parameters_in(
    pytree: Any, argument: str, stored: Collection[str] = ()
) -> list[Leaf]:
    """Return the parameters and the state of a model.

    They have the keys that `placer.trace` gives them if the model is its only argument with
    parameters, or a dict from the names of its arguments. `stored` has the keys of the values
    that exist; state without a value is left out.
    """
    from placer.ops.functions import arguments as regions

    opened = regions.open_models(pytree)
    is_parameter = regions.parameter_mask(opened)
    leaves = []
    for path, value in regions.leaves_with_paths(opened):
        leaf = Leaf(value, (argument, *path), regions.path_of_variable(value))
        is_trained = getattr(value, "trainable", True)  # by Keras
        if not next(is_parameter) or not is_trained:
            is_number = regions.is_number_array(value)
            leaf.is_state = is_number and _key_of(leaf, True) in stored
            if not leaf.is_state:
                continue
        leaves.append(leaf)
    set_keys(leaves)
    return leaves


def initial_values(init: Any, arguments: Arguments, name: str) -> dict[str, Any] | None:
    """Return the values that the pytree `init` gives the parameters of a trace, by key.

    Returns None if `init` is None or an initializer. State that the pytree lacks has no
    value. Raises SpecError if the pytree lacks parameters, has others, or some with other
    shapes.
    """
    from placer.ops.functions import arguments as regions

    if init is None or isinstance(init, str) or not regions.has_arrays(init):
        return None
    wanted = {leaf.key: leaf for leaf in arguments.leaves if leaf.key is not None}
    names = {leaf.path[0] for leaf in wanted.values()}
    argument = names.pop() if len(names) == 1 else "init"
    given = parameters_in(init, argument, wanted)
    values = {leaf.key: leaf.value for leaf in given if leaf.key is not None}
    for leaf in given:
        if not hasattr(leaf.value, "__array__"):
            raise SpecError(
                f"{_show(('init', *leaf.path[1:]))} has a shape but no values",
                hint="pass a pytree with arrays of numbers",
            )

    shapes = {f"{name}.{each.key}": str(list(each.value.shape)) for each in given}
    declared = {
        f"{name}.{key}": str(list(leaf.value.shape))
        for key, leaf in wanted.items()
        if key in values or not leaf.is_state
    }
    if problems := find_differences(shapes, declared):
        raise SpecError(
            f"init does not fit the arguments: {'; '.join(problems)}",
            hint="pass a pytree like the argument that has parameters; for several"
            " arguments, a dict from their names to pytrees",
        )
    return values


def _key_of(leaf: Leaf, only_one: bool) -> str:
    path = leaf.path[1:] if only_one and len(leaf.path) > 1 else leaf.path
    key = _joined(leaf.variable or path)
    key = f"p{key}" if key[0].isdigit() else key
    is_reserved = key in VALUE_SUFFIXES or _RESERVED.fullmatch(key)
    return f"{key}_" if is_reserved or not is_parameter_key(key) else key


def set_keys(parameters: Sequence[Leaf]) -> None:
    """Give each parameter a key. Raises SpecError if two parameters have the same key.
    The key is the path. It starts with the argument's name if several arguments have
    parameters, except for variables of Keras, whose paths have the name of the layer."""
    only_one = len({leaf.path[0] for leaf in parameters}) == 1
    leaf_of: dict[str, Leaf] = {}
    for leaf in parameters:
        key = _key_of(leaf, only_one)
        if key in leaf_of:
            raise SpecError(
                f"the parameters at {leaf_of[key].path_text} and {leaf.path_text} would"
                f" both be called '{key}'",
                hint="rename one of them",
            )
        leaf_of[key] = leaf
        leaf.key = key
