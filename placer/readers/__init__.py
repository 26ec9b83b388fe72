"""Readers: open sources, put rows into order, and return batches of typed columns."""

from placer.readers.arguments import ReadOptions
from placer.readers.column import Column, Limits
from placer.readers.digests import Digests
from placer.readers.order import Order
from placer.readers.rows import Rows
from placer.readers.source import open_source

__all__ = [
    "Column",
    "Digests",
    "Limits",
    "Order",
    "ReadOptions",
    "Rows",
    "open_source",
]
