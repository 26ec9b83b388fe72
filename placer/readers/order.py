"""In which order rows are taken: global batches of a globally shuffled epoch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placer.errors import DataError


@dataclass(frozen=True, slots=True)
class Order:
    """The batches of a source, a function of the seed, the epoch and the step alone.

    `batch` is the global batch; `remainder` says what becomes of an epoch's short
    tail. DataError where not even one batch is left.
    """

    rows: int
    batch: int
    shuffle: bool
    seed: int
    remainder: Literal["drop", "keep"]

    def __post_init__(self) -> None:
        if self.steps_per_epoch == 0:
            raise DataError(
                f"{self.rows} rows do not fill one batch of {self.batch}",
                hint="make the batch smaller, or write remainder: keep",
            )

    @property
    def steps_per_epoch(self) -> int:
        whole, tail = divmod(self.rows, self.batch)
        return whole + (tail > 0 and self.remainder == "keep")

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Row numbers of a global batch, int64[batch] or fewer in a kept tail.

        `epoch` counts from 1, `step` from 0 within the epoch.
        """
        assert epoch >= 1, epoch
        assert 0 <= step < self.steps_per_epoch, (step, self.steps_per_epoch)
        low = step * self.batch
        high = min(low + self.batch, self.rows)
        if not self.shuffle:
            return np.arange(low, high, dtype=np.int64)
        return _permutation(self.rows, self.seed, epoch)[low:high]


@lru_cache(maxsize=2)  # an epoch to train on, and the one to evaluate on
def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    key = np.array([seed % 2**64, epoch], np.uint64)
    order = np.random.Generator(np.random.Philox(key=key)).permutation(rows)
    order = order.astype(np.int64, copy=False)
    order.flags.writeable = False
    return order
