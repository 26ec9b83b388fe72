"""The order of rows: the global batches of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placer.plan.settings.data.sources import SourceError
from placer.plan.settings.data.window import Window


@dataclass(frozen=True, slots=True)
class Order:
    """The batches of a source, which depend only on the seed, the epoch and the step.

    Attributes:
        rows: the number of rows of the source.
        batch: the number of rows of a global batch.
        shuffle: whether every epoch has a new random order. A `Window` if the rows are
            read in pieces; `placer.readers.deal` then gives the order.
        seed: the seed of the order.
        remainder: whether the last rows of an epoch, too few for a batch, are dropped
            or become a shorter batch.

    Raises:
        DataError: if an epoch has no batch.
    """

    rows: int
    batch: int
    shuffle: bool | Window
    seed: int
    remainder: Literal["drop", "keep"]

    def __post_init__(self) -> None:
        if self.rows == 0:
            raise SourceError(
                ("source",), "there are no rows", "a source needs at least one row"
            )
        if self.steps_per_epoch == 0:
            raise SourceError(
                ("batch",),
                f"{self.rows} rows do not fill one batch of {self.batch}",
                "make the batch smaller, or write remainder: keep",
            )

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        whole, tail = divmod(self.rows, self.batch)
        return whole + (tail > 0 and self.remainder == "keep")

    def batch_size(self, step: int) -> int:
        """Return the number of rows of batch `step` (from 0) of an epoch."""
        return min(self.batch, self.rows - step * self.batch)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a global batch: int64[batch].

        The last batch of an epoch may be shorter. `epoch` counts from 1, and `step`
        from 0 within the epoch.
        """
        assert isinstance(self.shuffle, bool)
        assert epoch >= 1, epoch
        assert 0 <= step < self.steps_per_epoch, (step, self.steps_per_epoch)
        low = step * self.batch
        high = min(low + self.batch, self.rows)
        if not self.shuffle:
            return np.arange(low, high, dtype=np.int64)
        return _permutation(self.rows, self.seed, epoch)[low:high]


@lru_cache(maxsize=2)  # for one epoch of training, and one of evaluation
def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    key = np.array([seed % 2**64, epoch], np.uint64)
    order = np.random.Generator(np.random.Philox(key=key)).permutation(rows)
    order = order.astype(np.int64, copy=False)
    order.flags.writeable = False
    return order
