"""The arguments of a traced function as text in a node program, and back.

The text is a JSON list with one term for each argument:

- `{"in": "float32[batch, 64]"}` is a value of the graph;
- `{"param": "float32[64]"}` is a parameter;
- `{"value": 0.1}` is a plain Python value;
- `{"list": [...]}`, `{"tuple": [...]}` and `{"dict": {...}}` contain other terms;
- `{"make": "model"}` is a global name of the function's file: a pytree, or a function
  without arguments that returns one. Its float arrays are parameters. Its other leaves
  are as the file creates them. So are variables of Flax other than `nnx.Param`, such as
  running statistics, and the `State` of Equinox.
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
class PytreeTemplate:
    """A pytree of the function's file, flattened, with a mask of its parameters."""

    structure: Any
    leaves: tuple[Any, ...]
    is_parameter: tuple[bool, ...]

    def types(self) -> list[TensorType]:
        """Return the types of its parameters, in order."""
        return [
            TensorType(parameter_dtype(str(leaf.dtype)), tuple(leaf.shape))
            for leaf, is_one in zip(self.leaves, self.is_parameter, strict=True)
            if is_one
        ]

    def fill(self, values: Iterator[Any]) -> Any:
        """Return the pytree with these values as its parameters, in order."""
        return jax.tree.unflatten(
            self.structure,
            [
                next(values) if is_one else leaf
                for leaf, is_one in zip(self.leaves, self.is_parameter, strict=True)
            ],
        )


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a traced function.

    `types` are the types of the values of the graph and of the parameters, in order.
    `terms` say how these values become arguments, and `templates` are the pytrees of
    `make` terms by name.
    """

    types: tuple[TensorType, ...]
    terms: tuple[Term, ...]
    templates: Mapping[str, PytreeTemplate]

    def fill(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments, with these values in place of their types."""
        remaining = iter(values)
        return tuple(_fill(term, remaining, self.templates) for term in self.terms)


def read_arguments(fn: Callable[..., Any], text: str) -> Arguments:
    """Parse the text of the arguments of `fn`.

    Raises PlacerError if its file lacks a name, and what functions of the file raise.
    """
    terms = tuple(json.loads(text))
    values = [value for term in terms for value in _values_in(term)]
    names = dict.fromkeys(content for key, content in values if key == "make")
    templates = {name: make_template(fn, name) for name in names}
    types: list[TensorType] = []
    for key, content in values:
        if key == "make":
            types += templates[content].types()
        elif key in ("in", "param"):
            types.append(TensorType.parse(content))
    return Arguments(tuple(types), terms, templates)


def globals_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the global names of the file of a function."""
    function: Any = inspect.unwrap(fn)
    names = getattr(function, "__globals__", None)
    return names if isinstance(names, dict) else {}


def make_template(fn: Callable[..., Any], name: str) -> PytreeTemplate:
    """Return the template of the pytree called `name` in the file of `fn`.

    A function is only evaluated for shapes and dtypes, unless its pytree has arrays
    that are not parameters: their values are needed.
    """
    pytree = globals_of(fn).get(name)
    if pytree is None:
        raise PlacerError(f"the file of '{fn.__name__}' has no '{name}'")
    if not inspect.isfunction(pytree):
        return split_pytree(pytree)
    template = _make_by_types(pytree)
    leaves = zip(template.leaves, template.is_parameter, strict=True)
    if any(_is_array(leaf) and not is_one for leaf, is_one in leaves):
        with jax.ensure_compile_time_eval():
            return split_pytree(pytree())
    return template


def call_with_precision(function: Callable[[], Any], wide: bool) -> Any:
    """Call a function with the precision of a program; `wide` is float64."""
    with jax.enable_x64(wide):
        return function()


def split_pytree(pytree: Any) -> PytreeTemplate:
    """Return the template of a pytree."""
    leaves, structure = jax.tree.flatten(pytree)
    return PytreeTemplate(structure, tuple(leaves), tuple(parameter_mask(pytree)))


def parameter_mask(pytree: Any) -> Iterator[bool]:
    """Yield for each leaf whether it is a parameter.

    Parameters are float arrays, except in variables of Flax other than `nnx.Param` and
    in the `State` of Equinox.
    """
    for leaf in jax.tree.leaves(pytree, is_leaf=_is_state):
        if _is_state(leaf):
            yield from (False for _ in jax.tree.leaves(leaf))
        else:
            yield _is_array(leaf) and str(leaf.dtype) in FLOATS


def _is_state(node: Any) -> bool:
    # A library that is not imported has no objects in the pytree.
    flax, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if flax is not None and isinstance(node, flax.Variable):
        return not isinstance(node, flax.Param)
    return equinox is not None and isinstance(node, equinox.nn.State)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _make_by_types(function: Callable[[], Any]) -> PytreeTemplate:
    templates: list[PytreeTemplate] = []

    def arrays() -> list[Any]:
        template = split_pytree(function())
        templates.append(template)
        return [leaf for leaf in template.leaves if _is_array(leaf)]

    structs = iter(jax.eval_shape(arrays))
    (template,) = templates
    leaves = [next(structs) if _is_array(leaf) else leaf for leaf in template.leaves]
    return PytreeTemplate(template.structure, tuple(leaves), template.is_parameter)


def _values_in(term: Term) -> Iterator[tuple[str, Any]]:
    """Yield the key and the content of each term that contains no others, in order."""
    ((key, content),) = term.items()
    if key not in ("list", "tuple", "dict"):
        yield key, content
        return
    for inner in content.values() if key == "dict" else content:
        yield from _values_in(inner)


def parameter_dtype(dtype: str) -> str:
    """Return the dtype in which a parameter is stored.

    It is float64 for all floats if the precision is float64.
    """
    if jax.dtypes.canonicalize_dtype("float64") == "float64":
        return "float64"
    return "float32" if dtype == "float64" else dtype


def _fill(
    term: Term, values: Iterator[Any], templates: Mapping[str, PytreeTemplate]
) -> Any:
    ((key, content),) = term.items()
    match key:
        case "in" | "param":
            return next(values)
        case "make":
            return templates[content].fill(values)
        case "list":
            return [_fill(each, values, templates) for each in content]
        case "tuple":
            return tuple(_fill(each, values, templates) for each in content)
        case "dict":
            return {
                name: _fill(each, values, templates) for name, each in content.items()
            }
    assert key == "value", key
    return content


def leaves_with_paths(pytree: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Return the leaves of a pytree, each with the names on the path to it.

    The `value` of a variable of Flax is left out of the path.
    """
    leaves = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(pytree)[0]:
        names = [jax.tree_util.keystr((key,), simple=True) for key in path]
        if len(names) > 1 and names[-1] == "value":
            names.pop()
        leaves.append((tuple(names), leaf))
    return leaves
