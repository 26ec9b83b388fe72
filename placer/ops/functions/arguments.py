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
  of the file returns for these arguments;
- `{"make": {"fn": "model", "state": ["norm.mean"]}}`, also with `with`, names the paths of
  the state: variables that the function assigns in training. They are values like parameters;
- `{"state": {"make": ...}}` is state without parameters. The function returns its results and
  a new value of this argument.

Streams of random numbers of Flax and seed generators of Keras do not keep their values: in
each step, the i-th one of all arguments has the key `fold_in(key of the step, i)` and the
count 0. In evaluation, modules of the pytree are switched: dropout is off, and statistics
are not updated.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import jax
import numpy as np

from placer.errors import PlacerError, did_you_mean
from placer.ops.functions.paths import leaves_with_paths as leaves_with_paths
from placer.ops.special.exported_jax import in_evaluation
from placer.place.types import FLOATS, ITEM_BYTES, TensorType


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

    def pytrees(self) -> Iterator[Any]:
        """Yield the pytrees of templates inside, with types in place of values."""
        for leaf in self.leaves:
            if isinstance(leaf, Template):
                yield jax.tree.unflatten(leaf.structure, leaf.leaves)

    def fill(self, values: Iterator[Any], key: Any = None) -> Any:
        """Return the pytree with the next values in place of their types.

        `key` is the key of the step, for streams of random numbers. Without it, they stay
        as they are.
        """
        leaves = [_fill(leaf, values, key) for leaf in self.leaves]
        pytree = jax.tree.unflatten(self.structure, leaves)
        return (
            pytree if self.keys is None else dict(zip(self.keys, pytree, strict=True))
        )


@dataclass(frozen=True, slots=True)
class StreamLeaf:
    """The key of stream `number`, or its count if `number` is None.

    `is_data` is true for a seed generator of Keras, which has the words of the key.
    """

    number: int | None
    shape: tuple[int, ...]
    is_data: bool = False

    def value(self, key: Any) -> Any:
        """Return the leaf for a key of the step."""
        if self.number is None:
            return jax.numpy.zeros(self.shape, jax.numpy.uint32)
        own = jax.random.fold_in(key, self.number)
        if self.is_data:
            return jax.random.key_data(own)
        return jax.random.split(own, self.shape) if self.shape else own


def _fill(leaf: Any, values: Iterator[Any], key: Any) -> Any:
    if isinstance(leaf, Template):
        return leaf.fill(values, key)
    if isinstance(leaf, StreamLeaf):
        return leaf if key is None else leaf.value(key)
    return next(values) if isinstance(leaf, TensorType) else leaf


def read_arguments(
    fn: Callable[..., Any], text: str, training: bool = False
) -> Template:
    """Parse the text of the arguments of `fn` to a template of their list.

    Unless `training`, modules are switched to evaluation. The types of the template are
    those of graph values and of parameters. Raises PlacerError if the file of `fn` lacks a
    name; errors raised by functions of the file propagate.
    """
    templates: dict[str, Template] = {}

    def make(content: Made, is_state: bool = False) -> Template:
        key = json.dumps([content, is_state])
        if key not in templates:
            templates[key] = make_template(
                fn, content, training=training, is_state=is_state
            )
        return templates[key]

    leaves, structure = jax.tree.flatten([_parse(t, make) for t in json.loads(text)])
    return Template(structure, _numbered(leaves, count()))


def _numbered(leaves: Sequence[Any], numbers: Iterator[int]) -> list[Any]:
    """Return leaves in which the streams of all arguments have different numbers."""
    numbered = []
    for leaf in leaves:
        if isinstance(leaf, Template):
            leaf = replace(leaf, leaves=_numbered(leaf.leaves, numbers))
        elif isinstance(leaf, StreamLeaf) and leaf.number is not None:
            leaf = replace(leaf, number=next(numbers))
        numbered.append(leaf)
    return numbered


def _parse(term: Mapping[str, Any], make: Callable[..., Template]) -> Any:
    ((key, content),) = term.items()
    match key:
        case "in" | "param":
            return TensorType.parse(content)
        case "make":
            return make(content)
        case "state":
            return make(content["make"], True)
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


def open_parameters(fn: Callable[..., Any], count: int) -> list[str]:
    """Return the names among `key` and `training` that `count` arguments leave open."""
    kinds = {p.name: p.kind for p in inspect.signature(fn).parameters.values()}
    both, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    left = [*kinds][count:]
    return [
        name
        for name in ("key", "training")
        if kinds.get(name) == only or (kinds.get(name) == both and name in left)
    ]


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


Made = str | Mapping[str, Any]
"""The content of a term `make`: a name, or a mapping with `fn`, `with` and `state`."""


def make_template(
    fn: Callable[..., Any],
    made: Made,
    *,
    training: bool = False,
    is_state: bool = False,
) -> Template:
    """Return the template of a pytree that the file of `fn` makes.

    A function is only traced for shapes and dtypes, unless its pytree has arrays that are
    not parameters: their values are needed.

    Args:
        made: the content of its term.
        training: unless true, modules are switched to evaluation.
        is_state: whether it is state, without parameters.
    """
    content = {"fn": made} if isinstance(made, str) else made
    name, state = content["fn"], content.get("state", ())
    pytree = globals_of(fn).get(name)
    if pytree is None:
        raise PlacerError(
            f"the file of '{fn.__name__}' has no '{name}'",
            hint=did_you_mean(name, globals_of(fn)),
        )
    if "with" in content:
        pytree = call_with(pytree, plain_value({"dict": content["with"]}))

    def split() -> Template:
        own = pytree() if inspect.isfunction(pytree) else pytree
        return split_pytree(
            own if training else in_evaluation(own), state, not is_state
        )

    if not inspect.isfunction(pytree):
        return split()
    templates: list[Template] = []
    jax.eval_shape(lambda: templates.append(split()))
    (template,) = templates
    if any(_is_array(x) and not isinstance(x, TensorType) for x in template.leaves):
        return _template_of_values(split)
    return template


def _template_of_values(split: Callable[[], Template]) -> Template:
    """Return the template of a function's pytree, with the values of its arrays."""
    # JAX traces nothing in another thread. Equinox's error_if fails inside
    # jax.ensure_compile_time_eval.
    wide = str(jax.dtypes.canonicalize_dtype("float64")) == "float64"
    context = copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="placer model") as thread:
        call = thread.submit(context.run, call_with_precision, split, wide)
        template: Template = call.result()
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


def split_pytree(
    pytree: Any, state: Sequence[str] = (), trained: bool = True
) -> Template:
    """Return the template of a pytree, with the types of its parameters and its state.

    `state` are the paths of its state. Unless `trained`, it has no parameters.
    """
    leaves, structure = jax.tree.flatten(pytree)
    mask = (is_one and trained for is_one in parameter_mask(pytree))
    pairs = zip(leaves, mask, strict=True)
    typed = [_stored_type(leaf) if is_one else leaf for leaf, is_one in pairs]
    for at, leaf in _stream_leaves(pytree):
        typed[at] = leaf
    if state:
        paths = [".".join(path) for path, _ in leaves_with_paths(pytree)]
        for at, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
            if path in state:
                typed[at] = _stored_type(leaf)
    return Template(structure, typed)


def state_paths(fn: Callable[..., Any], text: str) -> list[str]:
    """Return the paths of all state in the arguments of `fn`, as in `leaves_by_path`."""
    names = list(inspect.signature(fn).parameters)
    return [
        path
        for at, term in enumerate(json.loads(text))
        for path in _state_paths(term, names[min(at, len(names) - 1)])
    ]


def _state_paths(term: Mapping[str, Any], path: str) -> Iterator[str]:
    ((key, content),) = term.items()
    if key == "state":
        yield from _state_paths(content, path)
    if key == "make" and not isinstance(content, str):
        yield from (f"{path}.{inner}" for inner in content.get("state", ()))
    if key in ("list", "tuple", "dict"):
        items = content.items() if key == "dict" else enumerate(content)
        for inner, each in items:
            yield from _state_paths(each, f"{path}.{inner}")


def state_argument(text: str) -> int | None:
    """Return the index of the argument that is state; None without one."""
    terms = json.loads(text)
    return next((at for at, term in enumerate(terms) if "state" in term), None)


def is_number_array(leaf: Any) -> bool:
    """Return True for an array of floats, integers or booleans, which can be state."""
    is_number = _is_array(leaf) and str(leaf.dtype) in ITEM_BYTES.keys() - {"key"}
    return is_number and not is_seed(leaf)


def could_be_state(pytree: Any) -> Iterator[bool]:
    """Yield for each leaf whether it becomes state if a function assigns it.

    These are the arrays of Flax nnx variables other than parameters and streams of random
    numbers.
    """
    nnx = sys.modules.get("flax.nnx")

    def is_variable(node: Any) -> bool:
        return nnx is not None and isinstance(node, nnx.Variable)

    for node in jax.tree.leaves(pytree, is_leaf=is_variable):
        kept = is_variable(node) and is_untrained(node)
        kept = kept and nnx is not None and not isinstance(node, nnx.RngState)
        for leaf in jax.tree.leaves(node) if is_variable(node) else [node]:
            yield kept and is_number_array(leaf)


def _stream_leaves(pytree: Any) -> Iterator[tuple[int, StreamLeaf]]:
    """Yield the leaves of streams of random numbers, each with its index."""
    nnx = sys.modules.get("flax.nnx")
    at = number = 0

    def is_stream(node: Any) -> bool:
        return nnx is not None and isinstance(node, nnx.RngStream)

    for node in jax.tree.leaves(pytree, is_leaf=is_stream):
        if is_seed(node):
            yield at, StreamLeaf(number, tuple(node.shape), is_data=True)
        leaves = jax.tree.leaves(node) if is_stream(node) else [node]
        for leaf in leaves if is_stream(node) else ():
            is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            yield at, StreamLeaf(number if is_key else None, tuple(leaf.shape))
            at += 1
        number += is_stream(node) or is_seed(node)
        at += not is_stream(node)


def _stored_type(array: Any) -> TensorType:
    """Return the stored type of a parameter or of state.

    Floats are stored as float64, if enabled. Otherwise 64-bit numbers are cut to 32 bits.
    """
    widest, dtype = str(jax.dtypes.canonicalize_dtype("float64")), str(array.dtype)
    if dtype not in FLOATS:
        stored = str(jax.dtypes.canonicalize_dtype(dtype))
    else:
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
    for path, leaf in leaves_with_paths(pytree, is_untrained):
        if not is_untrained(leaf) and _is_array(leaf) and "complex" in str(leaf.dtype):
            yield path


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


def path_of_variable(leaf: Any) -> tuple[str, ...]:
    """Return the names on the path that Keras gives a variable; empty for other leaves."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(leaf, keras.Variable):
        return ()
    return tuple(leaf.path.split("/"))


def is_seed(leaf: Any) -> bool:
    """Return True for the variable of a seed generator of Keras."""
    names = path_of_variable(leaf)
    return names[-1:] == ("seed_generator_state",) and not leaf.trainable


def has_arrays(pytree: Any) -> bool:
    """Return True if a pytree has arrays; numbers of NumPy are not arrays."""
    leaves = jax.tree.leaves(open_models(pytree))
    return any(_is_array(x) and not isinstance(x, np.generic) for x in leaves)


def open_models(pytree: Any) -> Any:
    """Return a pytree with the variables of each Keras model in its place."""
    keras = sys.modules.get("keras")
    if keras is None:
        return pytree
    return jax.tree.map(
        lambda leaf: list(leaf.variables) if isinstance(leaf, keras.Model) else leaf,
        pytree,
    )
