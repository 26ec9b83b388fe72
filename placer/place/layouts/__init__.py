"""Layouts: how nodes, or microbatches, share a value."""

from __future__ import annotations

from typing import Literal

Layout = Literal["R", "S", "P", "F"]
"""How nodes share a value.

R, replicated: each node holds the whole value. S, split: each node holds some rows. P,
partial: the value is the sum over nodes. F, flat ranges: each node holds some elements
(`placer.place.layouts.ranges`). Microbatches never have layout F.
"""
