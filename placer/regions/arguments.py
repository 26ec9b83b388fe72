"""What a function is called with, as text that a program can hold, and back.

A list of terms, one an argument: `{"in": "float32[batch, 64]"}` is a value of the graph,
`{"param": "float32[64]"}` one that is a parameter, `{"value": 0.1}` a plain one, and
`{"list": [...]}`, `{"tuple": [...]}`, `{"dict": {...}}` hold others. `{"make": "model"}`
is what the function's file calls so: a pytree, or a function without arguments that
makes one. Its float arrays are parameters, all else is as the file has it; so is what
Flax keeps in variables of other kinds than `nnx.Param`, as running statistics, and
Equinox in its `State`.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from placer.errors import PlacerError
from placer.types import FLOATS, TensorType

Term = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A pytree of the file, cut into its parameters and what else there is."""

    tree: Any
    leaves: tuple[Any, ...]
    trained: tuple[bool, ...]

    def filled(self, values: Iterator[Any]) -> Any:
        """The pytree with other parameters."""
        return jax.tree.unflatten(
            self.tree,
            [
                next(values) if is_one else leaf
                for leaf, is_one in zip(self.leaves, self.trained, strict=True)
            ],
        )


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a function is called with: the types of the values that it takes, in their
    order, and how they make its arguments."""

    types: tuple[TensorType, ...]
    terms: tuple[Term, ...]
    made: Mapping[str, Made]

    def filled(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments, of these values."""
        ahead = iter(values)
        return tuple(_filled(term, ahead, self.made) for term in self.terms)


def read(fn: Callable[..., Any], text: str) -> Arguments:
    """The arguments that the text says; raises what the file raises as it makes them."""
    terms = tuple(json.loads(text))
    names = dict.fromkeys(name for term in terms for name in _made_by(term))
    made = {name: make(fn, name) for name in names}
    types = tuple(kind for term in terms for kind in _types(term, made))
    return Arguments(types, terms, made)


def namespace(fn: Callable[..., Any]) -> dict[str, Any]:
    """The names of the file that a function stands in."""
    inner: Any = inspect.unwrap(fn)
    found = getattr(inner, "__globals__", None)
    return found if isinstance(found, dict) else {}


def make(fn: Callable[..., Any], name: str) -> Made:
    """What the file of `fn` calls so. A function is run by its types alone, unless some
    of what it makes is an array and no parameter: that has to be computed."""
    found = namespace(fn).get(name)
    if found is None:
        raise PlacerError(f"the file of '{fn.__name__}' has no '{name}'")
    if not inspect.isfunction(found):
        return taken_apart(found)
    made = _by_types(found)
    parts = zip(made.leaves, made.trained, strict=True)
    if any(_is_array(leaf) and not is_one for leaf, is_one in parts):
        with jax.ensure_compile_time_eval():
            return taken_apart(found())
    return made


def called(function: Callable[[], Any], wide: bool) -> Any:
    """What a function makes where the precision is such; `wide` is float64."""
    with jax.enable_x64(wide):
        return function()


def taken_apart(pytree: Any) -> Made:
    """A pytree as it is."""
    leaves, tree = jax.tree.flatten(pytree)
    return Made(tree, tuple(leaves), tuple(are_trained(pytree)))


def are_trained(pytree: Any) -> Iterator[bool]:
    """Of each leaf whether it is a parameter: an array of floats that Flax does not keep
    in a variable of another kind, nor Equinox in its state."""
    for leaf in jax.tree.leaves(pytree, is_leaf=_is_kept):
        if _is_kept(leaf):
            yield from (False for _ in jax.tree.leaves(leaf))
        else:
            yield _is_array(leaf) and str(leaf.dtype) in FLOATS


def _is_kept(node: Any) -> bool:
    # Where a library is not imported there is nothing of its.
    flax, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if flax is not None and isinstance(node, flax.Variable):
        return not isinstance(node, flax.Param)
    return equinox is not None and isinstance(node, equinox.nn.State)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _by_types(function: Callable[[], Any]) -> Made:
    kept: list[Made] = []

    def arrays() -> list[Any]:
        made = taken_apart(function())
        kept.append(made)
        return [leaf for leaf in made.leaves if _is_array(leaf)]

    structs = iter(jax.eval_shape(arrays))
    (made,) = kept
    leaves = [next(structs) if _is_array(leaf) else leaf for leaf in made.leaves]
    return Made(made.tree, tuple(leaves), made.trained)


def _made_by(term: Term) -> Iterator[str]:
    if "make" in term:
        yield term["make"]
    for inner in _inside(term):
        yield from _made_by(inner)


def _inside(term: Term) -> Sequence[Term]:
    if "dict" in term:
        return list(term["dict"].values())
    found: Sequence[Term] = term.get("list", term.get("tuple", ()))
    return found


def _types(term: Term, made: Mapping[str, Made]) -> Iterator[TensorType]:
    """The types of the values, in their order."""
    if "make" in term:
        one = made[term["make"]]
        for leaf, is_one in zip(one.leaves, one.trained, strict=True):
            if is_one:
                yield TensorType(held(str(leaf.dtype)), tuple(leaf.shape))
    elif "in" in term or "param" in term:
        yield TensorType.parse(term.get("in", term.get("param")))
    for inner in _inside(term):
        yield from _types(inner, made)


def held(dtype: str) -> str:
    """The dtype of a parameter: float64 for any where the precision is that."""
    if jax.dtypes.canonicalize_dtype("float64") == "float64":
        return "float64"
    return "float32" if dtype == "float64" else dtype


def _filled(term: Term, values: Iterator[Any], made: Mapping[str, Made]) -> Any:
    ((key, said),) = term.items()
    match key:
        case "in" | "param":
            return next(values)
        case "make":
            return made[said].filled(values)
        case "list":
            return [_filled(each, values, made) for each in said]
        case "tuple":
            return tuple(_filled(each, values, made) for each in said)
        case "dict":
            return {name: _filled(each, values, made) for name, each in said.items()}
    assert key == "value", key
    return said


def leaves_with_paths(pytree: Any) -> list[tuple[tuple[str, ...], Any]]:
    """The leaves of a pytree, each with the words that lead to it. Flax keeps an array
    in a variable, whose `value` is no word of its own."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(pytree)[0]:
        words = [jax.tree_util.keystr((key,), simple=True) for key in path]
        if len(words) > 1 and words[-1] == "value":
            words.pop()
        found.append((tuple(words), leaf))
    return found
