"""Layouts: how a value is distributed over nodes, or over microbatches."""

from __future__ import annotations

from typing import Literal

Layout = Literal["R", "S", "P"]
"""R, replicated: each node has the whole value. S, split: each node has some of the
rows. P, partial: the value is the sum of what the nodes have."""
