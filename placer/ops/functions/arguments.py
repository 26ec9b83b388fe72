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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import jax

from placer.ops.functions.made_models import Made, make_template
from placer.ops.functions.template import StreamLeaf, Template
from placer.place.types import TensorType


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
