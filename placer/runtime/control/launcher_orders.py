"""Defines the orders that a launcher writes to a node's pipe for orders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

STOP_ORDER: Final = b"\n"
"""Order to stop the run, after the same step on all nodes."""
STEP_CALLED: Final = b"."
"""Note that the callbacks have finished one more step."""
_MOVED: Final = b"@"
_END: Final = b";"


def address_order(node: str, address: str) -> bytes:
    """Return the order to use another address of a node, because it runs on another machine.

    >>> address_order("ps:0", "10.0.0.9:4711")
    b'@ps:0=10.0.0.9:4711;'
    """
    return b"%b%b=%b%b" % (_MOVED, node.encode(), address.encode(), _END)


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders in a part of the pipe.

    Attributes:
        stops: whether the run must stop.
        steps: the number of steps that the callbacks have finished.
        addresses: the new address of each node that has moved.
    """

    stops: bool = False
    steps: int = 0
    addresses: dict[str, str] = field(default_factory=dict)


class OrderReader:
    """Reads the orders of a pipe, whose parts may end inside an order.

    Example:
        reader = OrderReader()
        reader.read(b"..@ps:0=10.0.0.9")  # steps=2
        reader.read(b":4711;\\n")  # stops=True, addresses={"ps:0": "10.0.0.9:4711"}
    """

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> Orders:
        """Return the orders that are complete with the next data of the pipe."""
        addresses = {}
        single = b""
        data, self._rest = self._rest + data, b""
        while data:
            before, found, data = data.partition(_MOVED)
            single += before
            order, is_complete, after = data.partition(_END)
            if found and not is_complete:
                self._rest = found + data
                break
            if found:
                node, _, address = order.decode().partition("=")
                addresses[node], data = address, after
        return Orders(STOP_ORDER in single, single.count(STEP_CALLED), addresses)
