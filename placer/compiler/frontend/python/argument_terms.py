"""Writes the arguments of a trace as terms of a spec, and collects the values in them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from numbers import Integral, Real
from typing import Any

import jax

from placer.compiler.frontend.entries.names import is_name, is_parameter_key
from placer.compiler.frontend.python.parameter_keys import Leaf, show_path
from placer.compiler.frontend.python.variable import Variable
from placer.errors import KERAS_HINT, SpecError
from placer.ops.functions.library_leaves import (
    backend_of_variable,
    complex_leaves,
    could_be_state,
    is_number_array,
    parameter_mask,
    path_of_variable,
)
from placer.ops.functions.made_models import globals_of, plain_value
from placer.ops.functions.paths import leaves_with_paths
from placer.place.types import FLOATS


class TermBuilder:
    """Builds the terms of arguments, and collects their leaves."""

    def __init__(
        self,
        fn: Callable[..., Any],
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
        self._wide = wide
        self._globals = globals_of(fn)
        self._file = inspect.unwrap(fn).__code__.co_filename.rpartition("/")[2]

    def term(self, arg: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """Return the term of an argument, or of a part of it at `path`."""
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
                    message = (
                        f"{show_path(path)} has the key {key!r}; keys must be strings"
                    )
                    raise SpecError(message)
            # Sorted, as JAX does when it flattens a dict.
            return {"dict": {k: self.term(arg[k], (*path, k)) for k in sorted(arg)}}
        if hasattr(arg, "shape") and hasattr(arg, "dtype"):
            if "complex" in str(arg.dtype):
                raise self._complex_error(path)
            if str(arg.dtype) not in FLOATS:
                raise SpecError(
                    f"{show_path(path)} is an array of {arg.dtype}, but a parameter must"
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
            f"{show_path(path)} is a complex array, but parameters must be real",
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
                    f"the configuration of {show_path(path)} has the key {key!r}, which"
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
            f"{show_path(path)} is {type(value).__name__}, but the configuration of a model"
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
        shown = show_path(path)
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
            given = plain_value({"dict": config or {}})
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
            with jax.enable_x64(self._wide):
                pytree = arg(**given)
        self.pytrees.append((path, pytree))
        for inner in complex_leaves(pytree):
            raise self._complex_error((*path, *inner))
        is_parameter = parameter_mask(pytree)
        is_variable = could_be_state(pytree)
        state: list[str] = []
        for inner, leaf in leaves_with_paths(pytree):
            if isinstance(leaf, Variable):
                raise SpecError(
                    f"{show_path((*path, *inner))} is a value of the program"
                )
            full = ".".join((*path, *inner))
            is_state = path == (self._state_argument,)
            could_be = next(is_variable)
            if could_be or (is_state and is_number_array(leaf)):
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
                f"{show_path(path)} is an empty array: its shape is {tuple(value.shape)}",
                hint="remove it, or pass None in its place: a parameter needs elements",
            )
        if (backend := backend_of_variable(value)) not in (None, "jax"):
            raise SpecError(
                f"{show_path(path)} is a variable of Keras with the backend '{backend}',"
                " but JAX traces the function",
                hint=KERAS_HINT,
            )
        for other in self.leaves:
            if other.value is value and not isinstance(value, Variable):
                raise SpecError(
                    f"{show_path(path)} and {other.path_text} are the same array, but"
                    " would become two parameters",
                    hint="pass the array once, or copy it",
                )
        variable = path_of_variable(value)
        self.leaves.append(Leaf(value, path, variable))
        return self.leaves[-1]


def _is_configured(pair: tuple[Any, ...]) -> bool:
    """Return True for a function that takes arguments, and a dict with them."""
    if len(pair) != 2 or not inspect.isfunction(pair[0]) or type(pair[1]) is not dict:
        return False
    return bool(inspect.signature(pair[0]).parameters)
