"""Readers: open sources, put rows into order, and return batches of typed columns."""

from placer.config.columns import Column, Range
from placer.config.data import Data
from placer.readers.arguments import ReadOptions
from placer.readers.digests import Digests
from placer.readers.order import Order
from placer.readers.rows import Rows
from placer.readers.source import open_source

__all__ = [
    "Column",
    "Data",
    "Digests",
    "Order",
    "Range",
    "ReadOptions",
    "Rows",
    "open_source",
]
