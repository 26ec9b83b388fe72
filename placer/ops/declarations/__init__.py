"""What the ops declare, one file for each family. No JAX and no numpy here."""

from __future__ import annotations

from placer.ops.declarations import (
    activation,
    arithmetic,
    constant,
    dense,
    embedding,
    inserted,
    loss,
    metric,
    reduction,
    shape,
)

FAMILIES = {
    "dense": dense.DECLARATIONS,
    "embedding": embedding.DECLARATIONS,
    "arithmetic": arithmetic.DECLARATIONS,
    "activation": activation.DECLARATIONS,
    "shape": shape.DECLARATIONS,
    "reduction": reduction.DECLARATIONS,
    "loss": loss.DECLARATIONS,
    "metric": metric.DECLARATIONS,
    "constant": constant.DECLARATIONS,
    "inserted": inserted.DECLARATIONS,
}
"""The declarations by family, which names their file here and among the functions."""
