"""Readers: open sources, put rows into order, and return batches of typed columns."""

from placer.plan.settings.data.columns import Column as Column
from placer.plan.settings.data.columns import Range as Range
from placer.plan.settings.data.digests import Digests as Digests
from placer.plan.settings.data.source import Data as Data
from placer.readers.arguments import ReadOptions as ReadOptions
from placer.readers.order import Order as Order
from placer.readers.pieces import PieceRows as PieceRows
from placer.readers.rows import LateRows as LateRows
from placer.readers.rows import Rows as Rows
from placer.readers.source import open_pieces as open_pieces
from placer.readers.source import open_source as open_source
