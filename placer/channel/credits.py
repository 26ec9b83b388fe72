"""Flow control: the bytes on the way to each peer, and the bytes acknowledged to it."""

from __future__ import annotations

from collections.abc import Iterable


class Credits:
    """Totals of bytes (cost) for each peer, which only grow.

    Not thread-safe: the owner's lock guards it. Totals instead of differences make an
    acknowledgement that is lost, repeated or late harmless.
    """

    def __init__(self, peers: Iterable[str], bound: int) -> None:
        self._bounds = dict.fromkeys(peers, bound)
        self._sent = dict.fromkeys(
            self._bounds, 0
        )  # the cost of all messages sent to a peer
        self._acknowledged = dict.fromkeys(self._sent, 0)  # how much of it a peer has
        self._granted = dict.fromkeys(self._sent, 0)  # acknowledged by this node

    def set_bound(self, peer: str, bound: int) -> None:
        """Set how many bytes may be on the way to a peer."""
        self._bounds[peer] = bound

    def has_room(self, peer: str, cost: int) -> bool:
        """Whether a message to `peer` is within the bound, or would be the only one on the
        way."""
        in_flight = self._sent[peer] - self._acknowledged[peer]
        return not in_flight or in_flight + cost <= self._bounds[peer]

    def claim(self, peer: str, cost: int) -> bool:
        """Count a message to `peer` as sent, unless there is no room for it."""
        has_room = self.has_room(peer, cost)
        if has_room:
            self._sent[peer] += cost
        return has_room

    def required_credit(self, peer: str, cost: int) -> int:
        """Return the total that `peer` must acknowledge before `cost` may be sent."""
        sent = self._sent[peer]
        return min(sent, max(0, sent + cost - self._bounds[peer]))

    def update(self, peer: str, total: int) -> bool:
        """Record that `peer` has acknowledged `total` bytes; False if it had before.

        A total beyond what was sent is ignored: the peer cannot raise its own bound.
        """
        is_new = self._acknowledged[peer] < total <= self._sent[peer]
        if is_new:
            self._acknowledged[peer] = total
        return is_new

    def grant(self, peer: str, cost: int) -> int:
        """Acknowledge `cost` more bytes to `peer`; return the new total."""
        self._granted[peer] += cost
        return self._granted[peer]

    def granted(self, peer: str) -> int:
        """Return the total that this node has acknowledged to `peer`."""
        return self._granted[peer]
