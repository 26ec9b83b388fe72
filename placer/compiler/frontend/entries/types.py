"""Reads the types of values, such as `float32[batch, 64]`."""

from __future__ import annotations

import re

from placer.compiler.frontend.yaml.problems import Problems
from placer.compiler.frontend.yaml.tree import ScalarNode, SpecNode
from placer.errors import did_you_mean
from placer.place.types import ITEM_BYTES, MAX_DIM, TensorType

_DTYPES = tuple(name for name in ITEM_BYTES if name != "key")
_SIZES = {"float": "float32", "double": "float64", "half": "float16"} | {
    "int": "int32",
    "integer": "int32",
    "long": "int64",
}
"""The dtypes that names without a size usually mean."""


def read_type(
    node: SpecNode,
    problems: Problems,
    expected: str = "a type must be text",
    hint: str = 'write "float32[batch, 64]"',
) -> TensorType | None:
    """Return the type in a text; report any other node and return None. `expected` and
    `hint` are the arguments of `Problems.expect`."""
    text = problems.expect(node, ScalarNode, expected, hint)
    if text is None:
        return None
    try:
        return TensorType.parse(text.text, MAX_DIM)
    except ValueError as error:
        word = re.match(r"\w*", text.text.strip())
        dtype = word.group() if word else ""
        known = dtype in _DTYPES or "[" not in text.text
        near = None if known else did_you_mean(_SIZES.get(dtype, dtype), _DTYPES)
        rest = text.text.strip().removeprefix(dtype)
        if near is not None:  # the caret is under the whole type
            near = re.sub(r"'(\w+)'\?$", rf"'\1{rest}'?", near)
        shape = rest.strip("[]")
        if near is None and " " in shape.strip() and "," not in shape:
            near = f'write "{dtype}[{", ".join(shape.split())}]"'
        problems.add(str(error), text.inner_span, near)
        return None
