"""Maps op names of Keras, Flax and PyTorch, such as `nn.Linear`, to ops of placer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from placer.errors import nearest

_SYNONYMS: Final = {
    "dense": "fc",
    "linear": "fc",
    "fullyconnected": "fc",
    "convtranspose1d": "conv1d_transpose",
    "convtranspose2d": "conv2d_transpose",
    "maxpooling1d": "max_pool1d",
    "maxpooling2d": "max_pool2d",
    "averagepooling1d": "avg_pool1d",
    "averagepooling2d": "avg_pool2d",
    "batchnorm1d": "batch_norm",
    "batchnorm2d": "batch_norm",
    "batchnormalization": "batch_norm",
    "layernormalization": "layer_norm",
    "groupnormalization": "group_norm",
    "embed": "embedding",
    "scaleddotproductattention": "attention",
    "swish": "silu",
    "mm": "matmul",
    "bmm": "matmul",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "neg": "negative",
    "cat": "concat",
    "concatenate": "concat",
    "permute": "transpose",
    "unsqueeze": "expand_dims",
    "crossentropyloss": "softmax_cross_entropy",
    "bcewithlogitsloss": "sigmoid_cross_entropy",
    "mse": "mean_squared_error",
    "mseloss": "mean_squared_error",
}
"""Other names with a clear counterpart, in lower case and without underscores."""


def op_hint(name: str, kinds: Collection[str]) -> str:
    """Return the hint for an unknown op. `kinds` are the valid ops."""
    plain = _plain(name)
    same = {_plain(kind): kind for kind in kinds}
    meant = same.get(plain) or _SYNONYMS.get(plain) or nearest(name, kinds)
    return f"did you mean '{meant}'?" if meant else "`placer schema` lists them"


def _plain(name: str) -> str:
    """Return the letters of a name without its module: `dense` for `nn.Dense`."""
    return name.rpartition(".")[2].replace("_", "").casefold()
