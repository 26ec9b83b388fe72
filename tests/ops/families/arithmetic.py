"""Elementwise arithmetic."""

from op_use import Use


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


DIFFERENTIABLE = [
    *_pairs("add"),
    *_pairs("sub")[:3],
    *_pairs("mul"),
    *_pairs("div"),
    Use("scale", ("float32[batch, 4]",), {"factor": 0.25}),
    Use("scale", ("float32[batch, 4]",), {"factor": -3.0, "bias": 2.0}),
    Use("sqrt", ("float32[batch, 4]",), domain={0: (0.3, 1.7)}),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "scale": lambda x, factor, bias=0.0: factor * x + bias,
    "sqrt": lambda x: x**0.5,
}
