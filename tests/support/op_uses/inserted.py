"""Ops that only the compiler inserts."""

from support.op_use import Use

DIFFERENTIABLE = [
    Use("if_training", ("float32[batch, 4]", "float32[batch, 4]")),
    Use("if_training", ("float32[3]", "float32[3]")),
]

WITHOUT_GRADIENT = [
    Use("accumulate", ("float32[batch, 4]",) * 3),
    Use("accumulate", ("float32[4]",)),
    Use("sum_of_squares", ("float32[4, 3]", "float32[3]", "float32[]")),
    Use("sum_of_squares", ("float32[batch, 3]", "float32[batch]")),
    Use("clip_scale", ("float32[]", "float32[]"), {"max_norm": 0.5}),
    Use("hold", ("float32[batch, 4]", "float32[batch, 2]")),
    Use("hold", ("float32[batch, 4]",)),
    Use("clip_value", ("float32[4, 3]",), {"limit": 0.5}),
    Use("clip_part", ("float32[4, 3]", "float32[3]"), {"global_norm": 0.5}),
    Use("clip_part", ("float32[4, 3]", "float32[3]"), {"norm": 0.5}),
    Use("clip_part", ("float32[4, 3]",), {"value": 0.5}),
    Use("row_share", ("float32[4, 3]",)),
    Use("row_estimate", ("float32[4, 3]",)),
    Use("trust_ratio", ("float32[]",) * 4, domain=dict.fromkeys(range(4), (0.1, 2))),
    Use("trust_ratio", ("float32[]",) * 2, {"coefficient": 0.001, "eps": 0.1}),
]

PLAIN = {"if_training": lambda training, evaluation: training}
