"""Converts the arguments of a traced function to text in a node program, and back.

The text is a JSON list with one term for each argument:

- `{"in": "float32[batch, 64]"}` is a value of the graph;
- `{"param": "float32[64]"}` is a parameter;
- `{"value": 0.1}` is a plain Python value;
- `{"list": [...]}`, `{"tuple": [...]}` and `{"dict": {...}}` contain other terms;
- `{"make": "model"}` is a global name of the function's file: a pytree, or a function
  without arguments that returns a pytree. Its float arrays are parameters, except Flax
  variables other than `nnx.Param`, and `State` and `StateIndex` of Equinox. These, such as
  running statistics, and all other leaves keep their values from the file;
- `{"make": {"fn": "model", "with": {"layers": {"value": 6}}}}` is the pytree that a function
  of the file returns for these arguments.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from placer.errors import PlacerError, did_you_mean
from placer.place.types import FLOATS, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A flattened pytree, with a type in place of each value to fill in.

    Attributes:
        leaves: a type to fill in, another template, or a leaf of the pytree itself.
        keys: if given, the pytree is a dict with these keys in this order, because JAX
            would sort them. `structure` then belongs to the list of its values.
    """

    structure: Any
    leaves: Sequence[Any]
    keys: tuple[str, ...] | None = None

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the values to fill in, in order."""
        inner = (
            leaf.types if isinstance(leaf, Template) else (leaf,)
            for leaf in self.leaves
        )
        return tuple(x for each in inner for x in each if isinstance(x, TensorType))

    def fill(self, values: Iterator[Any]) -> Any:
        """Return the pytree with the next values in place of their types."""
        leaves = [_fill(leaf, values) for leaf in self.leaves]
        pytree = jax.tree.unflatten(self.structure, leaves)
        return (
            pytree if self.keys is None else dict(zip(self.keys, pytree, strict=True))
        )


def _fill(leaf: Any, values: Iterator[Any]) -> Any:
    if isinstance(leaf, Template):
        return leaf.fill(values)
    return next(values) if isinstance(leaf, TensorType) else leaf


def read_arguments(fn: Callable[..., Any], text: str) -> Template:
    """Parse the text of the arguments of `fn` to a template of their list.

    Its types are the types of graph values and of parameters. Raises PlacerError if the
    file of `fn` lacks a name; errors raised by functions of the file propagate.
    """
    make = cache(partial(make_template, fn))
    leaves, structure = jax.tree.flatten([_parse(t, make) for t in json.loads(text)])
    return Template(structure, leaves)


def _parse(term: Mapping[str, Any], make: Callable[[str], Template]) -> Any:
    ((key, content),) = term.items()
    match key:
        case "in" | "param":
            return TensorType.parse(content)
        case "make":
            return make(content if isinstance(content, str) else json.dumps(content))
        case "list":
            return [_parse(each, make) for each in content]
        case "tuple":
            return tuple(_parse(each, make) for each in content)
        case "dict":
            terms = [_parse(each, make) for each in content.values()]
            leaves, structure = jax.tree.flatten(terms)
            return Template(structure, leaves, tuple(content))
    assert key == "value", key
    return content


def globals_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the global names of the file of a function."""
    function: Any = inspect.unwrap(fn)
    names = getattr(function, "__globals__", None)
    return names if isinstance(names, dict) else {}


def plain_value(term: Mapping[str, Any]) -> Any:
    """Return the plain Python value of a term of a configuration."""
    ((key, content),) = term.items()
    match key:
        case "list":
            return [plain_value(each) for each in content]
        case "tuple":
            return tuple(plain_value(each) for each in content)
        case "dict":
            return {name: plain_value(each) for name, each in content.items()}
    assert key == "value", key
    return content


def make_template(fn: Callable[..., Any], made: str) -> Template:
    """Return the template of a pytree that the file of `fn` makes.

    `made` is its name, or the JSON of the name of a function and its arguments. A function is only traced for shapes and dtypes, unless its pytree has arrays that
    are not parameters: their values are needed.
    """
    content = json.loads(made) if made.startswith("{") else {"fn": made}
    name = content["fn"]
    pytree = globals_of(fn).get(name)
    if pytree is None:
        raise PlacerError(
            f"the file of '{fn.__name__}' has no '{name}'",
            hint=did_you_mean(name, globals_of(fn)),
        )
    if "with" in content:
        pytree = call_with(pytree, plain_value({"dict": content["with"]}))
    if not inspect.isfunction(pytree):
        return split_pytree(pytree)
    templates: list[Template] = []
    jax.eval_shape(lambda: templates.append(split_pytree(pytree())))
    (template,) = templates
    if any(_is_array(x) and not isinstance(x, TensorType) for x in template.leaves):
        with jax.ensure_compile_time_eval():
            return split_pytree(pytree())
    return template


def call_with(make: Callable[..., Any], config: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function without arguments that calls `make` with a configuration."""

    def made() -> Any:
        return make(**config)

    return made


def call_with_precision(function: Callable[[], Any], wide: bool) -> Any:
    """Call a function with float64 enabled if `wide`, otherwise disabled."""
    with jax.enable_x64(wide):
        return function()


def split_pytree(pytree: Any) -> Template:
    """Return the template of a pytree, with the types of its parameters."""
    leaves, structure = jax.tree.flatten(pytree)
    pairs = zip(leaves, parameter_mask(pytree), strict=True)
    typed = [_parameter_type(leaf) if is_one else leaf for leaf, is_one in pairs]
    return Template(structure, typed)


def _parameter_type(array: Any) -> TensorType:
    """Return the stored type of a parameter: float64 for floats, if enabled."""
    widest, dtype = str(jax.dtypes.canonicalize_dtype("float64")), str(array.dtype)
    stored = widest if "float64" in (widest, dtype) else dtype
    return TensorType(stored, tuple(array.shape))


def parameter_mask(pytree: Any) -> Iterator[bool]:
    """Yield for each leaf whether it is a parameter.

    Parameters are float arrays, except in Flax variables other than `nnx.Param`, and in
    `State` and `StateIndex` of Equinox.
    """
    for leaf in jax.tree.leaves(pytree, is_leaf=is_untrained):
        if is_untrained(leaf):
            yield from (False for _ in jax.tree.leaves(leaf))
        else:
            yield _is_array(leaf) and str(leaf.dtype) in FLOATS


def complex_leaves(pytree: Any) -> Iterator[tuple[str, ...]]:
    """Yield the path of each complex array that a library would train."""
    paths, _ = jax.tree_util.tree_flatten_with_path(pytree, is_leaf=is_untrained)
    for path, leaf in paths:
        if not is_untrained(leaf) and _is_array(leaf) and "complex" in str(leaf.dtype):
            yield names_on_path(path)


def is_untrained(node: Any) -> bool:
    """Return True if the library of a node of the pytree does not train it."""
    # Libraries that are not imported have no objects in the pytree.
    flax, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    if flax is not None and isinstance(node, flax.Variable):
        return not isinstance(node, flax.Param)
    if equinox is None:
        return False
    return isinstance(node, equinox.nn.State | equinox.nn.StateIndex)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def leaves_with_paths(pytree: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Return the leaves of a pytree, each with the names on its path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(pytree)
    return [(names_on_path(path), leaf) for path, leaf in flat]


def path_of_variable(leaf: Any) -> tuple[str, ...]:
    """Return the names on the path that Keras gives a variable; empty for other leaves."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(leaf, keras.Variable):
        return ()
    return tuple(leaf.path.split("/"))


def has_arrays(pytree: Any) -> bool:
    """Return True if a pytree has arrays; numbers of NumPy are not arrays."""
    leaves = jax.tree.leaves(open_models(pytree))
    return any(_is_array(x) and not isinstance(x, np.generic) for x in leaves)


def open_models(pytree: Any) -> Any:
    """Return a pytree with the trainable variables of each Keras model in its place."""
    keras = sys.modules.get("keras")
    if keras is None:
        return pytree
    return jax.tree.map(
        lambda leaf: (
            list(leaf.trainable_variables) if isinstance(leaf, keras.Model) else leaf
        ),
        pytree,
    )


def names_on_path(path: Sequence[Any], *before: str) -> tuple[str, ...]:
    """Yield the names on a JAX path, without the `value` of Flax variables."""
    keystr = jax.tree_util.keystr
    names = (*before, *(keystr((key,), simple=True) for key in path))
    return names[:-1] if len(names) > 1 and names[-1] == "value" else names
