"""Types of values: a dtype and a shape.

The dimension `batch` is the number of rows in the global batch. The dimension `keys` is
the number of keys in a sparse table or a batch.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import cache
from math import prod
from typing import Literal

from msgspec import Struct

Dim = int | Literal["batch", "keys"]
BATCH: Literal["batch"] = "batch"
KEYS: Literal["keys"] = "keys"
"""The first dimension of a sparse table and of its rows. It is unknown before a run."""

# In the order of dtype codes in messages (`placer/channel/payload.py`): append new
# ones.
ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "key": 8,
}
MAX_DIM = 2**31 - 1
"""The largest dimension: XLA counts rows and columns with 32 bits."""
HALF_FLOATS = frozenset({"float16", "bfloat16"})
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


@cache
def is_half_float(dtype: Hashable) -> bool:
    """Return True if a dtype of this module, numpy or JAX is a 16-bit float."""
    return str(dtype) in HALF_FLOATS


_TYPE = re.compile(r"([a-z]+[0-9]*)\[([^\[\]]*)\]\Z")


class TensorType(Struct, frozen=True):
    """A dtype and a shape. A dimension is an int, or `batch` for the global batch."""

    dtype: str
    shape: tuple[Dim, ...] = ()

    @classmethod
    def parse(cls, text: str, max_dim: int = 2**63 - 1) -> TensorType:
        """Parse a type such as `float32[batch, 64]`. Raises ValueError if it is
        invalid. `max_dim` is the largest dimension: MAX_DIM for types in a spec. A
        block of a parameter is flat and may be longer."""
        match = _TYPE.match(text.strip())
        if not match:
            raise ValueError(
                f"'{text}' is not a type; write for example float32[batch, 64]"
            )
        dtype, inner = match.groups()
        if dtype not in ITEM_BYTES:
            raise ValueError(f"'{dtype}' is not a dtype")
        shape: list[Dim] = []
        for part in inner.split(",") if inner.strip() else ():
            word = part.strip()
            if word == BATCH:
                shape.append(BATCH)
            elif word == KEYS:
                shape.append(KEYS)
            elif word.isdecimal():
                shape.append(_parse_dimension(word, max_dim))
            else:
                raise ValueError(f"'{word}' is not a dimension; write an int or batch")
        return cls(dtype, tuple(shape))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def has_rows(self) -> bool:
        """True if the first dimension is the batch. Only such values can have layout
        S.
        """
        return bool(self.shape) and self.shape[0] == BATCH

    @property
    def has_batch(self) -> bool:
        """True if any dimension is the batch."""
        return BATCH in self.shape

    @property
    def is_keyed(self) -> bool:
        """True if the value has one row per key. The number of keys is unknown before a
        run, so the type has no sizes."""
        return KEYS in self.shape

    def with_batch(self, batch: int, rows: int | None = None) -> TensorType:
        """Return the type with numbers for `batch`, as in `sizes`."""
        if BATCH not in self.shape:
            return self
        return TensorType(self.dtype, self.sizes(batch, rows))

    def sizes(self, batch: int, rows: int | None = None) -> tuple[int, ...]:
        """Return the shape as ints, for a batch of `batch` rows. With `rows`, return
        the shape of the local rows of a split value: `rows` replaces the first
        dimension, `batch` any other batch dimension."""
        assert not self.is_keyed, self
        sizes = tuple([batch if isinstance(d, str) else d for d in self.shape])
        return (rows, *sizes[1:]) if rows is not None and self.has_rows else sizes

    def numel(self, batch: int = 1, rows: int | None = None) -> int:
        """Return the number of elements. Takes the arguments of `sizes`."""
        return prod(self.sizes(batch, rows))

    def nbytes(self, batch: int = 1, rows: int | None = None) -> int:
        """Return the number of bytes. Takes the arguments of `sizes`."""
        return self.numel(batch, rows) * ITEM_BYTES[self.dtype]


def _parse_dimension(word: str, max_dim: int) -> int:
    # Check the length first: `int` raises a different error for thousands of digits.
    if len(word) > len(str(max_dim)) or int(word) > max_dim:
        short = word if len(word) <= 32 else f"{word[:29]}..."
        raise ValueError(f"a dimension can be at most {max_dim}, not {short}")
    return int(word)


class ResidualType(Struct, frozen=True):
    """The type of a residual: tensors that a forward op keeps for its gradient op, in
    addition to its operands and results."""

    parts: tuple[TensorType, ...] = ()

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))})"

    def nbytes(self, batch: int = 1, rows: int | None = None) -> int:
        """Return the number of bytes. Takes the arguments of `TensorType.sizes`."""
        return sum(part.nbytes(batch, rows) for part in self.parts)


ValueType = TensorType | ResidualType
