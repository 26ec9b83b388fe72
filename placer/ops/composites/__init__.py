"""The composites, one a file. No JAX and no numpy here."""

from __future__ import annotations

from placer.ops.composites.batch_norm import BATCH_NORM
from placer.ops.composites.dropout import DROPOUT

COMPOSITES = (DROPOUT, BATCH_NORM)
