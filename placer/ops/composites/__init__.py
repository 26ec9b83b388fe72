"""Composite ops. These modules import neither JAX nor NumPy."""

from __future__ import annotations

from placer.ops.composites.batch_norm import BATCH_NORM
from placer.ops.composites.dropout import DROPOUT
from placer.ops.composites.sampled import NCE, SAMPLED_SOFTMAX

COMPOSITES = (DROPOUT, BATCH_NORM, NCE, SAMPLED_SOFTMAX)
