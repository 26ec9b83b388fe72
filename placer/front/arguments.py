"""What `placer.trace` is called with, as terms of a spec, and its parameters by path."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from placer.errors import SpecError
from placer.front.variable import Variable
from placer.graph.kinds import SUFFIXES
from placer.spec.names import is_name
from placer.spec.op_parameters import widened
from placer.types import FLOATS, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A value that the function takes: of the program, or an array that is a parameter.
    `path` leads to it, from the name of the argument on."""

    value: Any
    path: tuple[str, ...]

    @property
    def shown(self) -> str:
        return ".".join(self.path)

    def type(self, wide: bool) -> TensorType:
        """Its type in the graph."""
        if isinstance(self.value, Variable):
            return self.value.type
        dtype = str(self.value.dtype)
        kind = TensorType("float32" if dtype == "float64" else dtype, self.value.shape)
        return widened(kind, wide)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The terms, the values that they take in their order, and the key of each that is
    a parameter (None for the others)."""

    terms: list[Any]
    """With leaves where a value stands."""
    leaves: list[Leaf]
    keys: list[str | None]

    def named(self) -> list[dict[str, Any]]:
        """The terms as a spec has them: with values, and the keys of parameters."""
        of = {id(leaf): k for leaf, k in zip(self.leaves, self.keys, strict=True)}
        return [
            _written(t, lambda leaf: of[id(leaf)] or leaf.value) for t in self.terms
        ]

    def typed(self, wide: bool) -> list[dict[str, Any]]:
        """The terms as a node reads them: with the types of values."""
        return [_written(t, lambda leaf: str(leaf.type(wide))) for t in self.terms]


def arguments(fn: Callable[..., Any], args: Sequence[Any], wide: bool) -> Arguments:
    """The arguments of a call of `fn`; with `wide` the precision is float64. Raises
    SpecError for what cannot be carried."""
    from placer.regions import arguments as regions

    writer = _Writer(fn, regions, wide)
    named = list(zip(_names(fn, args), args, strict=True))
    terms = [writer.term(arg, (name,)) for name, arg in named]
    return Arguments(terms, writer.leaves, _keys(writer.leaves))


class _Writer:
    """Takes arguments apart."""

    def __init__(self, fn: Callable[..., Any], regions: Any, wide: bool) -> None:
        self.leaves: list[Leaf] = []
        self._regions = regions
        self._wide = wide
        self._globals = regions.namespace(fn)
        self._file = inspect.unwrap(fn).__code__.co_filename.rpartition("/")[2]

    def term(self, arg: Any, path: tuple[str, ...]) -> dict[str, Any]:
        if isinstance(arg, Variable):
            return {"in": self._leaf(arg, path)}
        if arg is None or isinstance(arg, bool | int | float | str):
            return {"value": arg}
        if isinstance(arg, Real):  # a number of numpy's
            return {"value": int(arg) if isinstance(arg, Integral) else float(arg)}
        if type(arg) in (list, tuple):
            kind = type(arg).__name__
            items = [self.term(each, (*path, str(i))) for i, each in enumerate(arg)]
            return {kind: items}
        if type(arg) is dict:
            for key in arg:
                if not isinstance(key, str):
                    message = f"{'.'.join(path)} has the key {key!r}, which is no text"
                    raise SpecError(message)
            # In the order in which JAX flattens it.
            return {"dict": {k: self.term(arg[k], (*path, k)) for k in sorted(arg)}}
        if hasattr(arg, "shape") and hasattr(arg, "dtype"):
            return {"param": self._leaf(self._real(arg, path), path)}
        return self._made(arg, path)

    def _made(self, arg: Any, path: tuple[str, ...]) -> dict[str, Any]:
        """A pytree that the file of the function has under a name."""
        shown = ".".join(path)
        names = [k for k, each in self._globals.items() if each is arg and is_name(k)]
        if not names:
            raise SpecError(
                f"{shown} is {type(arg).__name__}, and {self._file} has no name for it:"
                " a node could not make it again",
                hint="write a function at the top of the file that makes it, and give"
                f" that: def {path[0]}(): return …",
            )
        made = arg
        if inspect.isfunction(arg):
            try:
                inspect.signature(arg).bind()
            except TypeError as error:
                message = f"{shown} is the function '{names[0]}', which takes arguments"
                hint = "a function that is given makes an argument, of nothing"
                raise SpecError(message, hint=hint) from error
            made = self._regions.called(arg, self._wide)
        trained = self._regions.are_trained(made)
        for inner, leaf in self._regions.leaves_with_paths(made):
            if isinstance(leaf, Variable):
                raise SpecError(f"{shown}.{'.'.join(inner)} is a value of the program")
            if next(trained):
                self._leaf(leaf, (*path, *inner))
        return {"make": names[0]}

    def _real(self, array: Any, path: tuple[str, ...]) -> Any:
        if str(array.dtype) not in FLOATS:
            raise SpecError(
                f"{'.'.join(path)} is an array of {array.dtype}, and a parameter is one"
                " of floats",
                hint=f"let {self._file} hold it, or give it as an input",
            )
        return array

    def _leaf(self, value: Any, path: tuple[str, ...]) -> Leaf:
        for other in self.leaves:
            if other.value is value and not isinstance(value, Variable):
                raise SpecError(
                    f"{'.'.join(path)} and {other.shown} are one array, and would be two"
                    " parameters",
                    hint="give it once and use it twice, or copy it",
                )
        self.leaves.append(Leaf(value, path))
        return self.leaves[-1]


def _written(term: Any, of: Callable[[Leaf], Any]) -> Any:
    """The term, with what `of` says in place of its leaves."""
    if isinstance(term, Leaf):
        return of(term)
    if isinstance(term, dict):
        return {key: _written(inner, of) for key, inner in term.items()}
    if isinstance(term, list):
        return [_written(inner, of) for inner in term]
    return term


def _names(fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[str]:
    """What the function calls its arguments."""
    try:
        bound = inspect.signature(fn).bind(*args)
    except TypeError as error:
        raise SpecError(f"'{fn.__name__}' cannot be called so: {error}") from error
    for name, value in bound.arguments.items():
        kind = inspect.signature(fn).parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{name}{i}" for i in range(len(value)))
        else:
            yield name


_OURS = re.compile(r"(out|mid)[0-9]+|new")
"""What values of the op are called beside its parameters."""


def _keys(leaves: Sequence[Leaf]) -> list[str | None]:
    """A name for each parameter: its path, from the argument on where several have
    parameters."""
    arrays = [leaf for leaf in leaves if not isinstance(leaf.value, Variable)]
    alone = len({leaf.path[0] for leaf in arrays}) == 1
    found: dict[str, Leaf] = {}
    keys: list[str | None] = []
    for leaf in leaves:
        if isinstance(leaf.value, Variable):
            keys.append(None)
            continue
        path = leaf.path[1:] if alone and len(leaf.path) > 1 else leaf.path
        key = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(path))
        key = f"p{key}" if key[0].isdigit() else key
        if key in SUFFIXES or _OURS.fullmatch(key) or not is_name(key):
            key = f"{key}_"
        if not is_name(key):
            raise SpecError(
                f"the parameter at {leaf.shown} would be called '{key}', which is longer"
                " than 64 characters",
                hint="give parts of the model as arguments of their own",
            )
        if key in found:
            raise SpecError(
                f"the parameters at {found[key].shown} and {leaf.shown} would both be"
                f" called '{key}'",
                hint="rename one of the two",
            )
        found[key] = leaf
        keys.append(key)
    return keys
