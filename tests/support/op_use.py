"""A use of an op: operand types, attributes, and arrays."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import yaml

from placer import ops
from placer.ops.attributes import complete
from placer.ops.declaration import Declaration, LayerParameter
from placer.place.types import TensorType

BATCH = 7


@dataclass(frozen=True)
class Use:
    """A use of an op.

    `domain` maps indices of operands to ranges [low, high): their arrays are uniform on
    the range, or integers in it.
    """

    kind: str
    operands: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    domain: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.operands)}){dict(self.attrs)}"

    @classmethod
    def parse(cls, line: str) -> "Use":
        """Return the use of a line such as `softmax(float32[batch, 4]) {axis: 1}`."""
        call, _, attrs = line.partition(") ")
        kind, _, operands = call.rstrip(")").partition("(")
        types = tuple(re.findall(r"\w+\[.*?\]", operands))
        return cls(kind, types, yaml.safe_load(attrs) if attrs else {})

    @property
    def declaration(self) -> Declaration:
        return ops.find(self.kind)

    @property
    def types(self) -> list[TensorType]:
        return [TensorType.parse(text) for text in self.operands]

    @property
    def all_attrs(self) -> dict[str, Any]:
        return complete(self.declaration, self.attrs)

    @property
    def created(self) -> tuple[LayerParameter, ...]:
        """The parameters that the layer of these operands and attributes creates."""
        attrs = complete(self.declaration, self.attrs, for_parameters=True)
        return self.declaration.parameters(self.types, attrs)

    @property
    def results(self) -> tuple[TensorType, ...]:
        return self.declaration.infer(self.types, self.all_attrs)

    def with_dtype(self, dtype: str) -> "Use":
        """Return the same use with its float32 operands in another dtype."""
        attrs = dict(self.attrs)
        if "dtype" in attrs:
            attrs["dtype"] = attrs["dtype"].replace("float32", dtype)
        operands = (text.replace("float32", dtype) for text in self.operands)
        return replace(self, operands=tuple(operands), attrs=attrs)

    def keywords(self, batch: int = BATCH) -> dict[str, Any]:
        """Return the attributes as in a node program, including `count` and `share`."""
        keywords = dict(self.attrs)
        if self.declaration.takes_count(self.types, self.all_attrs):
            keywords["count"] = batch
        if self.declaration.own_part:
            keywords["share"] = 0.5
        return keywords

    def arrays(self, batch: int = BATCH, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [
            _array(rng, t, t.sizes(batch), self.domain.get(i))
            for i, t in enumerate(self.types)
        ]


def _array(
    rng: np.random.Generator,
    kind: TensorType,
    sizes: Sequence[int],
    domain: tuple[float, float] | None,
) -> np.ndarray:
    if kind.is_float and domain is not None:
        return rng.uniform(*domain, sizes).astype(kind.dtype)
    if kind.is_float:
        # not near 0, where relu has a kink, and quotients and roots are steep
        values = rng.uniform(0.3, 1.7, sizes) * rng.choice([-1, 1], sizes)
        return values.astype(kind.dtype)
    low, high = domain or (0, 2 if kind.dtype == "bool" else 3)
    return rng.integers(int(low), int(high), sizes).astype(kind.dtype)
