"""Metrics."""

from collections.abc import Callable

from support.op_use import Use

CLASSES = (
    ("float32[batch, 3]", "int32[batch]"),
    ("float32[batch, 2, 3]", "int32[batch, 2]"),
    ("float32[8, 3]", "int32[8]"),
)
PAIRS = (
    ("float32[batch]", "int32[batch]"),
    ("float32[batch, 2]", "float32[batch, 2]"),
    ("float32[8]", "bool[8]"),
)


def _binary(kind: str) -> list[Use]:
    return [
        *(Use(kind, pair, domain={0: (0, 1), 1: (0, 2)}) for pair in PAIRS),
        Use(kind, PAIRS[0], {"threshold": 0.2, "logits": True}, {1: (0, 2)}),
        *(Use(kind, classes, {"class_id": 1}) for classes in CLASSES),
    ]


DIFFERENTIABLE: list[Use] = []

WITHOUT_GRADIENT = [
    *(Use("accuracy", classes) for classes in CLASSES),
    *(Use("top_k_accuracy", classes, {"k": 2}) for classes in CLASSES),
    *_binary("precision"),
    *_binary("recall"),
    *_binary("f1"),
    *(Use("auc", pair, {"bins": 9}, domain={0: (0, 1), 1: (0, 2)}) for pair in PAIRS),
    Use("auc", PAIRS[0], {"logits": True}, domain={1: (0, 2)}),
    *(
        Use(kind, operands)
        for kind in ("mean_absolute_error", "root_mean_squared_error")
        for operands in (("float32[batch, 2]",) * 2, ("float32[8]",) * 2)
    ),
    Use("mean", ("float32[batch, 2]",)),
    Use("mean", ("float32[]",)),
]

PLAIN: dict[str, Callable] = {}
