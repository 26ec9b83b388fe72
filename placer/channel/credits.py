"""Flow control: the bytes on the way to a peer, and the bytes acknowledged to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from placer.channel.message import Message


@dataclass(slots=True)
class Credit:
    """Totals of bytes (cost) sent to a peer and acknowledged; they only grow.

    Not thread-safe: the owner's lock guards it. Because these are totals and not
    differences, a lost, repeated or late acknowledgement does no harm.
    """

    peer: str
    bound: int  # the largest number of bytes on the way to the peer
    sent: int = 0  # cost of all messages sent to the peer
    acknowledged: int = 0  # cost that the peer has acknowledged
    granted: int = 0  # cost that this node has acknowledged to the peer
    # The costs of the messages that wait for room.
    waiting: list[int] = field(default_factory=list)
    # Unacknowledged messages of the peer, received or not.
    stored: list[Message] = field(default_factory=list)

    def has_room(self, cost: int) -> bool:
        """Whether a message fits within the bound, or is the only one on the way."""
        in_flight = self.sent - self.acknowledged
        return not in_flight or in_flight + cost <= self.bound

    @property
    def wanted(self) -> int:
        """The total that the peer must acknowledge before the largest waiting message fits.

        It is 0 if no message waits. It grows when another message is sent meanwhile.
        """
        cost = max(self.waiting, default=0)
        return cost and min(self.sent, max(0, self.sent + cost - self.bound))

    def update(self, total: int) -> bool:
        """Record that the peer has acknowledged `total` bytes in all. Returns False if
        that was known. A total beyond the sent bytes is ignored: the peer cannot raise
        its own bound."""
        is_new = self.acknowledged < total <= self.sent
        if is_new:
            self.acknowledged = total
        return is_new
