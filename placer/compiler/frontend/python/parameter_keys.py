"""Names the parameters of a trace after their paths in its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from placer.compiler.frontend.entries.names import is_parameter_key
from placer.compiler.frontend.entries.op_parameters import graph_type
from placer.compiler.frontend.python.variable import Variable
from placer.compiler.graph.structural_ops import VALUE_SUFFIXES
from placer.errors import SpecError
from placer.place.types import TensorType


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
        return f"{show_path(self.path)}{keras}"

    def type(self, wide: bool) -> TensorType:
        """Return the type of the value in the graph."""
        if isinstance(self.value, Variable):
            return self.value.type
        dtype = str(self.value.dtype)
        kind = TensorType("float32" if dtype == "float64" else dtype, self.value.shape)
        return graph_type(kind, wide)


def set_keys(parameters: Sequence[Leaf]) -> None:
    """Give each parameter a key. Raises SpecError if two parameters have the same key.
    The key is the path. It starts with the argument's name if several arguments have
    parameters, except for variables of Keras, whose paths have the name of the layer."""
    only_one = len({leaf.path[0] for leaf in parameters}) == 1
    leaf_of: dict[str, Leaf] = {}
    for leaf in parameters:
        key = key_of(leaf, only_one)
        if key in leaf_of:
            raise SpecError(
                f"the parameters at {leaf_of[key].path_text} and {leaf.path_text} would"
                f" both be called '{key}'",
                hint="rename one of them",
            )
        leaf_of[key] = leaf
        leaf.key = key


def key_of(leaf: Leaf, only_one: bool) -> str:
    """Return the key of a parameter. `only_one`: no other argument has parameters."""
    path = leaf.path[1:] if only_one and len(leaf.path) > 1 else leaf.path
    key = join_names(leaf.variable or path)
    key = f"p{key}" if key[0].isdigit() else key
    is_reserved = key in VALUE_SUFFIXES or _RESERVED.fullmatch(key)
    return f"{key}_" if is_reserved or not is_parameter_key(key) else key


_RESERVED = re.compile(r"(out|mid)[0-9]+|new|(training|evaluation)[0-9]*")
"""Names that the op uses for other values."""


def join_names(path: Sequence[str]) -> str:
    """Return the names of a path as one name: `layers_0_kernel`."""
    return re.sub(r"[^A-Za-z0-9_]", "_", "_".join(path)) or "_"


def show_path(path: Sequence[str]) -> str:
    """Return a path for messages, such as `p.a['b.c']`. It is unique for each path."""
    return path[0] + "".join(
        f".{key}" if re.fullmatch(r"\w+", key) else f"[{key!r}]" for key in path[1:]
    )
