"""Flow control: the bytes on the way to a peer, and the bytes acknowledged to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from placer.channel.message import Message


@dataclass(slots=True)
class Credit:
    """Totals of bytes (cost) for a peer, which only grow.

    Not thread-safe: the owner's lock guards it. Totals instead of differences make an
    acknowledgement that is lost, repeated or late harmless.
    """

    peer: str
    bound: int  # bytes that may be on the way to the peer
    sent: int = 0  # the cost of all messages sent to it
    acknowledged: int = 0  # how much of that it has acknowledged
    granted: int = 0  # acknowledged by this node
    # The costs of the messages that wait for room.
    waiting: list[int] = field(default_factory=list)
    # The messages of the peer that are not acknowledged, received or not.
    stored: list[Message] = field(default_factory=list)

    def has_room(self, cost: int) -> bool:
        """Whether a message is within the bound, or would be the only one on the way."""
        in_flight = self.sent - self.acknowledged
        return not in_flight or in_flight + cost <= self.bound

    @property
    def wanted(self) -> int:
        """The total that the peer must acknowledge before each message that waits for
        room has it; 0 if none does. It grows when another message is sent meanwhile."""
        cost = max(self.waiting, default=0)
        return cost and min(self.sent, max(0, self.sent + cost - self.bound))

    def update(self, total: int) -> bool:
        """Record that the peer has acknowledged `total` bytes; False if it had before.

        A total beyond what was sent is ignored: the peer cannot raise its own bound.
        """
        is_new = self.acknowledged < total <= self.sent
        if is_new:
            self.acknowledged = total
        return is_new
