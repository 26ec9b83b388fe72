"""Layouts: how a value is distributed over nodes, or over microbatches."""

from __future__ import annotations

from typing import Literal

Layout = Literal["R", "S", "P", "F"]
"""R, replicated: each node has the whole value. S, split: each node has some of the
rows. P, partial: the value is the sum of what the nodes have. F, flat ranges: each node
has some of the elements (`placer.place.layouts.ranges`); only over nodes, not microbatches."""
