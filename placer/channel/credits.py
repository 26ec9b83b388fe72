"""The bound: what is on its way to each peer, and what each was told it may send."""

from __future__ import annotations

from collections.abc import Iterable


class Ledger:
    """Bytes (cost) by peer, each count only ever growing; guarded by its owner's lock."""

    def __init__(self, peers: Iterable[str], bound: int) -> None:
        self._bound = bound
        self._sent = dict.fromkeys(peers, 0)  # the cost of all I sent to each
        self._allowed = dict.fromkeys(self._sent, 0)  # what each acknowledged of it
        self._credited = dict.fromkeys(self._sent, 0)  # what I acknowledged to each

    def has_room(self, peer: str, cost: int) -> bool:
        """Whether a message may be sent: the bound holds it, or nothing is on its way."""
        on_the_way = self._sent[peer] - self._allowed[peer]
        return not on_the_way or on_the_way + cost <= self._bound

    def wanted(self, peer: str, cost: int) -> int:
        """What `peer` must have acknowledged, all told, for such a message to be sent."""
        sent = self._sent[peer]
        return min(sent, max(0, sent + cost - self._bound))

    def send(self, peer: str, cost: int) -> None:
        """Count a message as on its way."""
        self._sent[peer] += cost

    def allow(self, peer: str, total: int) -> bool:
        """`peer` has acknowledged so much, all told; False if that is no news."""
        news = self._allowed[peer] < total <= self._sent[peer]
        if news:
            self._allowed[peer] = total
        return news

    def credit(self, peer: str, cost: int) -> int:
        """Acknowledge so much more to `peer`; what was acknowledged all told."""
        self._credited[peer] += cost
        return self._credited[peer]

    def credited(self, peer: str) -> int:
        """What was acknowledged to `peer`, all told."""
        return self._credited[peer]
