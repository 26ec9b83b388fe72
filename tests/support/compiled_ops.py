"""The functions of `placer.ops`, of which each call is one program, as in node programs.

In a call outside of a jitted function JAX compiles each primitive of an op by itself, which
takes most of the time of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from placer import ops
from placer.ops.function import Function


def __getattr__(name: str) -> Any:
    found = getattr(ops, name)
    return CompiledOp(name) if isinstance(found, Function) else found


@dataclass(frozen=True)
class CompiledOp:
    """A `Function` of `placer.ops`."""

    kind: str

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        return self._call("__call__", inputs, attrs)

    def forward(self, *inputs: Any, **attrs: Any) -> Any:
        return self._call("forward", inputs, attrs)

    def backward(self, *inputs: Any) -> Any:
        return self._call("backward", inputs, {})

    def _call(
        self, part: str, inputs: tuple[Any, ...], attrs: Mapping[str, Any]
    ) -> Any:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(inputs)):
            return getattr(getattr(ops, self.kind), part)(*inputs, **attrs)
        # A number gets the dtype of an array beside it.
        numbers = {i: x for i, x in enumerate(inputs) if isinstance(x, int | float)}
        arrays = [x for i, x in enumerate(inputs) if i not in numbers]
        return _program(self.kind, part, _Static(numbers), _Static(attrs))(*arrays)


class _Static:
    """Arguments that a program is compiled for; equal if they have the same text."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values = dict(values)
        self._text = repr(sorted(self.values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@cache
def _program(
    kind: str, part: str, numbers: _Static, attrs: _Static
) -> Callable[..., Any]:
    function = getattr(getattr(ops, kind), part)

    @jax.jit
    def program(*arrays: Any) -> Any:
        inputs = list(arrays)
        for i, number in sorted(numbers.values.items()):
            inputs.insert(i, number)
        return function(*inputs, **attrs.values)

    return program
