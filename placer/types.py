"""Types of values: a dtype and a shape, whose dimension `batch` is the global batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Literal

Dim = int | Literal["batch"]
BATCH: Literal["batch"] = "batch"

ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "key": 8,
}
LARGEST = 2**31 - 1
"""The largest dimension: XLA counts rows and columns in 32 bits."""
HALVES = frozenset({"float16", "bfloat16"})
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})

_TYPE = re.compile(r"([a-z]+[0-9]*)\[([^\[\]]*)\]\Z")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dtype and a shape; a dimension is an int or `batch`, the global batch."""

    dtype: str
    shape: tuple[Dim, ...] = ()

    @classmethod
    def parse(cls, text: str, largest: int = 2**63 - 1) -> TensorType:
        """Read `float32[batch, 64]`; ValueError says what is wrong with it.

        `largest` bounds a dimension: LARGEST in a model, while a block of a parameter is
        flat and may be longer.
        """
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
            elif word.isdecimal():
                shape.append(_dimension(word, largest))
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
        """Whether the leading dimension is the batch: only such a value can be split."""
        return bool(self.shape) and self.shape[0] == BATCH

    @property
    def has_batch(self) -> bool:
        """Whether any dimension is the batch."""
        return BATCH in self.shape

    def at(self, batch: int, rows: int | None = None) -> TensorType:
        """This type with `batch` written out, as `sizes` does."""
        if BATCH not in self.shape:
            return self
        return TensorType(self.dtype, self.sizes(batch, rows))

    def sizes(self, batch: int, rows: int | None = None) -> tuple[int, ...]:
        """The shape as ints, for a batch of that many rows.

        A part of a split value has only `rows` of them: its leading dimension, while
        any other that is the batch stays whole.
        """
        found = tuple(batch if d == BATCH else d for d in self.shape)
        return (rows, *found[1:]) if rows is not None and self.has_rows else found

    def numel(self, batch: int = 1, rows: int | None = None) -> int:
        return prod(self.sizes(batch, rows))

    def nbytes(self, batch: int = 1, rows: int | None = None) -> int:
        return self.numel(batch, rows) * ITEM_BYTES[self.dtype]


def _dimension(word: str, largest: int) -> int:
    # Python reads no more than a few thousand digits, and says so in its own words.
    if len(word) > len(str(largest)) or int(word) > largest:
        short = word if len(word) <= 32 else f"{word[:29]}..."
        raise ValueError(f"a dimension is at most {largest}, not {short}")
    return int(word)


@dataclass(frozen=True, slots=True)
class ResidualType:
    """What a forward op keeps for its backward beside its operands: a flat tuple."""

    parts: tuple[TensorType, ...] = ()

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))})"

    def nbytes(self, batch: int = 1, rows: int | None = None) -> int:
        return sum(part.nbytes(batch, rows) for part in self.parts)


ValueType = TensorType | ResidualType
