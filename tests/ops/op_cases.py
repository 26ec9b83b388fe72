"""Uses of ops that several tests draw on, and arrays for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placer import ops
from placer.graph.types import TensorType
from placer.ops.attributes import complete
from placer.ops.declaration import Declaration

BATCH = 7


@dataclass(frozen=True)
class Use:
    kind: str
    operands: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.operands)}){dict(self.attrs)}"

    @property
    def declaration(self) -> Declaration:
        return ops.find(self.kind)

    @property
    def types(self) -> list[TensorType]:
        return [TensorType.parse(text) for text in self.operands]

    @property
    def full(self) -> dict[str, Any]:
        return complete(self.declaration, self.attrs)

    def of(self, dtype: str) -> "Use":
        """The same use with its floats in another dtype."""
        attrs = dict(self.attrs)
        if "dtype" in attrs:
            attrs["dtype"] = attrs["dtype"].replace("float32", dtype)
        operands = (text.replace("float32", dtype) for text in self.operands)
        return Use(self.kind, tuple(operands), attrs)

    def keywords(self, batch: int = BATCH) -> dict[str, Any]:
        """The attributes as a node program writes them, `count` among them."""
        counts = self.declaration.counts(self.types, self.full)
        return {**self.attrs, "count": batch} if counts else dict(self.attrs)

    def arrays(self, batch: int = BATCH, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [_array(rng, t, t.sizes(batch)) for t in self.types]


def _array(
    rng: np.random.Generator, kind: TensorType, sizes: Sequence[int]
) -> np.ndarray:
    if kind.is_float:
        # away from 0, where relu bends, quotients blow up and roots have no slope
        values = rng.uniform(0.3, 1.7, sizes) * rng.choice([-1, 1], sizes)
        return values.astype(kind.dtype)
    return rng.integers(0, 3, sizes).astype(kind.dtype)


def _reductions(kind: str) -> list[Use]:
    return [
        Use(kind, ("float32[batch, 4]",)),
        Use(kind, ("float32[batch, 4]",), {"axis": 1}),
        Use(kind, ("float32[batch, 4]",), {"axis": [-2], "keepdims": True}),
        Use(kind, ("float32[batch, 4, 3]",), {"axis": [0, 2]}),
        Use(kind, ("float32[4, batch]",)),
        Use(kind, ("float32[4, 3]",), {"axis": []}),
        Use(kind, ("float32[]",)),
    ]


def _pairs(kind: str) -> list[Use]:
    return [
        Use(kind, ("float32[batch, 4]", "float32[batch, 4]")),
        Use(kind, ("float32[batch, 4]", "float32[4]")),
        Use(kind, ("float32[4]", "float32[batch, 4]")),
        Use(kind, ("float32[batch, 4]", "float32[batch, 1]")),
        Use(kind, ("float32[batch, 1]", "float32[batch]")),
        Use(kind, ("float32[batch, 4]", "float32[]")),
        Use(kind, ("float32[2, 1, 4]", "float32[3, 1]")),
        Use(kind, ("float32[]", "float32[]")),
    ]


def _losses(kind: str, *operands: tuple[str, ...]) -> list[Use]:
    return [
        Use(kind, given, {"reduce": reduce} if reduce else {})
        for given in operands
        for reduce in ("", "sum", "none")
    ]


DIFFERENTIABLE = [
    Use("fc", ("float32[batch, 4]", "float32[4, 3]", "float32[3]")),
    Use("fc", ("float32[batch, 4]", "float32[4, 3]")),
    Use("fc", ("float32[5, 4]", "float32[4, 3]")),
    Use("fc", ("float32[batch, 2, 4]", "float32[4, 3]", "float32[3]")),
    Use("fc", ("float32[batch, 4]", "float32[3, 4]"), {"transpose_w": True}),
    *(
        Use(
            "fc",
            ("float32[batch, 4]", "float32[4, 3]", "float32[3]"),
            {"activation": activation},
        )
        for activation in ("relu", "tanh", "sigmoid", "softmax")
    ),
    Use("matmul", ("float32[batch, 4]", "float32[4, 3]")),
    Use("matmul", ("float32[4, batch]", "float32[batch, 3]")),
    Use("matmul", ("float32[batch, 4]", "float32[batch, 3]"), {"transpose_a": True}),
    Use("matmul", ("float32[batch, 4]", "float32[batch, 4]"), {"transpose_b": True}),
    Use("matmul", ("float32[3, 4]", "float32[batch, 4]"), {"transpose_b": True}),
    Use("matmul", ("float32[batch, 2, 4]", "float32[batch, 4, 3]")),
    Use("matmul", ("float32[batch, 2, 4]", "float32[4, 3]")),
    Use(
        "matmul",
        ("float32[batch, 1, 4, 2]", "float32[5, 3, 4]"),
        {"transpose_a": True, "transpose_b": True},
    ),
    Use("embedding", ("int32[batch]", "float32[3, 4]")),
    Use("embedding", ("int32[batch, 2]", "float32[3, 4]")),
    *_pairs("add"),
    *_pairs("sub")[:3],
    *_pairs("mul"),
    *_pairs("div"),
    Use("scale", ("float32[batch, 4]",), {"factor": 0.25}),
    Use("scale", ("float32[batch, 4]",), {"factor": -3.0, "bias": 2.0}),
    Use("relu", ("float32[batch, 4]",)),
    Use("tanh", ("float32[batch, 4]",)),
    Use("sigmoid", ("float32[batch, 4]",)),
    Use("softmax", ("float32[batch, 4]",)),
    Use("softmax", ("float32[batch, 4]",), {"axis": 0}),
    Use("softmax", ("float32[batch, 4, 3]",), {"axis": 1}),
    Use("sqrt", ("float32[batch, 4]",)),
    Use("reshape", ("float32[batch, 6]",), {"shape": ["batch", 2, 3]}),
    Use("reshape", ("float32[batch, 6]",), {"shape": ["batch", 2, -1]}),
    Use("reshape", ("float32[batch, 2, 3]",), {"shape": [-1, 6]}),
    Use("reshape", ("float32[batch, 6]",), {"shape": [6, "batch"]}),
    Use("reshape", ("float32[batch, batch]",), {"shape": ["batch", 1, -1]}),
    Use("reshape", ("float32[4, 3]",), {"shape": [2, -1]}),
    Use("reshape", ("float32[1]",), {"shape": []}),
    Use("concat", ("float32[batch, 4]", "float32[batch, 2]", "float32[batch, 1]")),
    Use("concat", ("float32[2, 4]", "float32[3, 4]"), {"axis": 0}),
    *_reductions("reduce_sum"),
    *_reductions("reduce_mean"),
    *_losses(
        "softmax_cross_entropy",
        ("float32[batch, 3]", "int32[batch]"),
        ("float32[batch, 2, 3]", "int32[batch, 2]"),
        ("float32[8, 3]", "int32[8]"),
    ),
    *_losses(
        "sigmoid_cross_entropy",
        ("float32[batch, 2]", "int32[batch, 2]"),
        ("float32[batch]", "float32[batch]"),
        ("float32[8, 3]", "float32[8, 3]"),
    ),
    *_losses(
        "mean_squared_error",
        ("float32[batch, 2]", "float32[batch, 2]"),
        ("float32[8]", "float32[8]"),
        ("float32[2, batch]", "float32[2, batch]"),
    ),
]

WITHOUT_GRADIENT = [
    Use("accuracy", ("float32[batch, 3]", "int32[batch]")),
    Use("accuracy", ("float32[batch, 2, 3]", "int32[batch, 2]")),
    Use("accuracy", ("float32[8, 3]", "int32[8]")),
    Use("accumulate", ("float32[batch, 4]",) * 3),
    Use("accumulate", ("float32[4]",)),
    Use("sum_of_squares", ("float32[4, 3]", "float32[3]", "float32[]")),
    Use("sum_of_squares", ("float32[batch, 3]", "float32[batch]")),
    Use("clip_scale", ("float32[]", "float32[]"), {"max_norm": 0.5}),
    Use("constant", (), {"value": 2.5, "dtype": "float32", "shape": [2, 3]}),
    Use("constant", (), {"value": 1.0, "dtype": "float32"}),
    Use("constant", (), {"value": True, "dtype": "bool", "shape": [2]}),
]

ALL = [*DIFFERENTIABLE, *WITHOUT_GRADIENT]
