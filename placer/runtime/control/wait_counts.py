"""Counts of how often a node waited for other nodes."""

from __future__ import annotations

import msgspec


class WaitCounts(msgspec.Struct, frozen=True):
    """Counts of the samples of a node since its first step.

    Attributes:
        samples: the number of samples.
        waiting: the number of samples in which the node waited for other nodes.
        mostly_for: the nodes that it waited for most often.
    """

    samples: int = 0
    waiting: int = 0
    mostly_for: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """The share of waiting; None without samples."""
        return self.waiting / self.samples if self.samples else None
