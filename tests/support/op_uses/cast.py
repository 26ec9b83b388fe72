"""cast."""

from support.op_use import Use

DIFFERENTIABLE = [
    Use("cast", ("float32[batch, 4]",), {"dtype": "float32"}),
    Use("cast", ("bfloat16[batch, 4]",), {"dtype": "float32"}),
]

WITHOUT_GRADIENT = [
    Use("cast", ("float32[batch, 4]",), {"dtype": "bfloat16"}),
    Use("cast", ("float32[batch, 4]",), {"dtype": "int32"}),
    Use("cast", ("bool[batch, 4]",), {"dtype": "float32"}),
    Use("cast", ("int32[batch]",), {"dtype": "float32"}),
    Use("cast", ("int32[3]",), {"dtype": "bool"}),
]

PLAIN = {"cast": lambda x, dtype: x + x.astype(dtype) - x}
