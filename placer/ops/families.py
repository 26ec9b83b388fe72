"""The families of ops, in the order of the op reference.

A family is a pair of modules. `linear/dense.py` declares ops without importing JAX or
NumPy. `linear/dense_jax.py` defines their functions, under the names of the ops.
"""

from __future__ import annotations

from placer.ops.arrays import (
    axes,
    index,
    ordering,
    padding,
    reduction,
    scan,
    shape,
    slicing,
)
from placer.ops.elementwise import activation, arithmetic, cast, comparison, power
from placer.ops.image import convolution, pooling
from placer.ops.linear import dense, embedding, position, product
from placer.ops.losses import distance, loss, metric, sampling
from placer.ops.normalization import batch_norm, normalization
from placer.ops.sequence import attention, multi_head_attention, recurrent
from placer.ops.special import call, constant, gradient, inserted, random, user_metric

FAMILIES = (
    dense,
    convolution,
    pooling,
    normalization,
    embedding,
    position,
    recurrent,
    attention,
    multi_head_attention,
    arithmetic,
    power,
    comparison,
    cast,
    activation,
    shape,
    axes,
    slicing,
    padding,
    index,
    ordering,
    reduction,
    scan,
    product,
    gradient,
    random,
    sampling,
    batch_norm,
    loss,
    distance,
    metric,
    user_metric,
    call,
    constant,
    inserted,
)
"""The modules that declare ops. Each `Declaration` in their namespaces is an op."""
