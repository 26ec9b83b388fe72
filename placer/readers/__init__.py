"""Where rows come from: sources, the order in which they are taken, typed batches."""

from placer.readers.column import Column, Limits
from placer.readers.order import Order
from placer.readers.rows import Rows
from placer.readers.source import open_source

__all__ = ["Column", "Limits", "Order", "Rows", "open_source"]
