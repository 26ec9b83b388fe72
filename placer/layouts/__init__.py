"""Layouts: how a value is distributed over the nodes and microbatches that have it."""

from __future__ import annotations

from typing import Literal

Layout = Literal["R", "S", "P"]
"""Replicated: each has the whole value. Split: each has some of the rows. Partial: the
value is the sum of what they have."""
