"""The facts from which places are chosen: groups that move as one, values between them, and
devices.

All numbers are integers: nanoseconds, bytes and counts. The search has no clock and no random
number, so equal problems have equal answers on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that always run at one place.

    Attributes:
        forward: the nanoseconds of a microbatch forward, by device kind. A group cannot run
            on a kind that is missing.
        backward: the same for gradients. Missing kinds take 0.
        once: the nanoseconds of a step that do not depend on rows, such as the update.
        parameters: the bytes of the parameters, whose gradients replicas exchange.
        stored: the bytes that a device holds throughout: parameters, gradients and slots.
        activations: the bytes of a microbatch that are held from forward to backward.
    """

    name: str
    forward: Mapping[str, int]
    backward: Mapping[str, int] = field(default_factory=dict)
    once: int = 0
    parameters: int = 0
    stored: int = 0
    activations: int = 0

    def time(self, kind: str) -> int:
        """Return the nanoseconds of a microbatch, forward and backward."""
        return self.forward[kind] + self.backward.get(kind, 0)


@dataclass(frozen=True, slots=True)
class Flow:
    """A value that one group computes and others use; they are named by index.

    Attributes:
        nbytes: the bytes of a microbatch. A device sends or receives a value only once.
    """

    source: int
    targets: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Devices:
    """Equal devices. Each runs at most one stage.

    Attributes:
        memory: the bytes of one device; None if there is no limit.
        sends: whether messages take the device time. They do not if another processor
            reads and writes its memory.
    """

    kind: str
    count: int
    memory: int | None = None
    sends: bool = True


@dataclass(frozen=True, slots=True)
class Link:
    """The cost of messages, for the sender and again for the receiver.

    Attributes:
        per_message: nanoseconds of each message.
        per_megabyte: nanoseconds of 1,000,000 bytes; 800,000 for 1.25 GB/s.
        overlaps: whether a device computes while it sends and receives. Then a stage takes
            the longer of both, otherwise their sum.
    """

    per_message: int = 0
    per_megabyte: int = 0
    overlaps: bool = False

    def time(self, nbytes: int) -> int:
        """Return the nanoseconds of one message."""
        return self.per_message + -(-nbytes * self.per_megabyte // MEGABYTE)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a search of places knows.

    Attributes:
        groups: the groups in program order.
        flows: the values that groups send, if they are at different places.
        edges: pairs of groups. The first must not be in a later stage. A gradient
            flows against an edge.
        replicas: the numbers of devices that may share a stage.
        microbatches: the number of microbatches of a step.
        call: nanoseconds that a microbatch costs each stage, whatever runs there.
        update: nanoseconds that a step costs each stage, whatever runs there.
        holds_all: whether a stage holds the activations of all microbatches, as in the
            schedule gpipe. In 1f1b it holds one more than the stages after it.
        in_rounds: whether replicas take whole microbatches in turn, and exchange gradients
            after each round (PipeDream). Otherwise they divide the rows, and exchange
            gradients once in a step.
    """

    groups: Sequence[Group]
    flows: Sequence[Flow]
    edges: Sequence[tuple[int, int]]
    devices: Sequence[Devices]
    link: Link = Link()
    replicas: tuple[int, ...] = (1,)
    microbatches: int = 1
    call: int = 0
    update: int = 0
    holds_all: bool = False
    in_rounds: bool = False

    def exchanges(self, parameters: int, replicas: int) -> int:
        """Return the nanoseconds of a step in which a replica exchanges gradients.

        Each sends, and receives, all bytes but its own share twice: a sum, and its result.
        """
        if replicas == 1 or not parameters:
            return 0
        share = -(-2 * (replicas - 1) * parameters // replicas)
        once = 2 * (self.link.time(share) + (2 * replicas - 3) * self.link.per_message)
        return -(-self.microbatches * once // replicas) if self.in_rounds else once
