"""The parts of a cluster: kinds of nodes, and single devices of single nodes."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from placer.errors import PlaceError
from placer.node_kinds import CPU, NodeId
from placer.place.ids import MAX_ID
from placer.place.place import Place

# A resolved place is a tuple of its devices, so this bounds the memory that it takes.
MAX_DEVICES = 1_000_000
"""The most devices that all nodes of one kind may have together."""

ONE_CPU = ((CPU, 1),)


class NodeKind(Struct, frozen=True):
    """The nodes of one name: their number, and the devices that each of them has.

    A node that declares only other devices has one CPU besides them.

    `str` is the form in the text of a graph, with the devices in braces unless they are
    one CPU: `worker: 2`, `worker: 2 {cpu: 1, gpu: 8}`.

    Args:
        name: The name of the kind, as in places: lower case letters, digits and `_`.
        count: The number of nodes.
        devices: Pairs of a device kind and the number of such devices on each node.

    Raises:
        PlaceError: If a name cannot be written in a place, a number is out of range, or
            a device kind is declared twice or not at all.

    Example:
        >>> str(NodeKind("worker", 2, (("cpu", 1), ("gpu", 8))))
        'worker: 2 {cpu: 1, gpu: 8}'
    """

    name: str
    count: int
    devices: tuple[tuple[str, int], ...] = ONE_CPU

    def __post_init__(self) -> None:
        Place(node=self.name)
        _check_count(f"nodes '{self.name}'", self.count)
        for device, count in self.devices:
            Place(device=device)
            _check_count(f"devices '{device}' of node '{self.name}'", count)
        names = {device for device, _ in self.devices}
        if not names or len(names) < len(self.devices):
            raise PlaceError(
                f"node '{self.name}' must declare at least one device kind, each once"
            )
        total = self.count * sum(count for _, count in self.devices)
        if total > MAX_DEVICES:
            raise PlaceError(
                f"nodes '{self.name}' have {total} devices, more than {MAX_DEVICES}"
            )

    @property
    def counts(self) -> dict[str, int]:
        """The number of devices of each kind on a node, including the node's CPU."""
        return {CPU: 1, **dict(self.devices)}

    def __str__(self) -> str:
        if self.devices == ONE_CPU:
            return f"{self.name}: {self.count}"
        devices = ", ".join(f"{device}: {count}" for device, count in self.devices)
        return f"{self.name}: {self.count} {{{devices}}}"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """One device of one node, such as `/node:worker:0/cpu:0`."""

    node: str
    node_id: int
    device: str
    device_id: int

    @property
    def node_name(self) -> NodeId:
        """The node, such as `worker:0`."""
        return NodeId.of(self.node, self.node_id)

    def __str__(self) -> str:
        return f"/node:{self.node_name}/{self.device}:{self.device_id}"


def _check_count(what: str, count: int) -> None:
    if not 1 <= count <= MAX_ID + 1:
        raise PlaceError(f"there can be 1 to {MAX_ID + 1} {what}, not {count}")
