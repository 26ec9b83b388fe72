"""embedding."""

from support.op_use import Use

DIFFERENTIABLE = [
    Use("embedding", ("int32[batch]", "float32[3, 4]")),
    Use("embedding", ("int32[batch, 2]", "float32[3, 4]")),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "embedding": lambda ids, table: table[ids],
}
