"""Where rows come from: sources, the order in which they are taken, typed batches."""

from placer.readers.arguments import Reading
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
    "Reading",
    "Rows",
    "open_source",
]
