"""What a cluster is made of: kinds of nodes, and single devices of single nodes."""

from __future__ import annotations

from dataclasses import dataclass

from placer.errors import PlaceError
from placer.place.ids import MAX_ID
from placer.place.place import Place

# All devices of one node kind: a place is held written out as its devices.
MAX_DEVICES = 1_000_000

CPU = "cpu"
"""The device kind that every node has: the processor of its machine."""
ONE_CPU = ((CPU, 1),)

SERVER = "ps"
WORKER = "worker"
HETER = "heter"
"""The node kind that holds parameters unless the spec says otherwise (seed 004)."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one name: how many, and how many devices of each kind every one has.

    A node that declares other devices has one CPU beside them: the node's own.

    Prints as in the text of a graph, the devices in braces unless they are one CPU:
    `worker: 2`, `worker: 2 {cpu: 1, gpu: 8}`. Raises PlaceError for names and numbers
    that no place could say.
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
                f"node '{self.name}' declares at least one device kind, and each once"
            )
        total = self.count * sum(count for _, count in self.devices)
        if total > MAX_DEVICES:
            raise PlaceError(
                f"nodes '{self.name}' have {total} devices, and {MAX_DEVICES} is most"
            )

    @property
    def counts(self) -> dict[str, int]:
        """How many devices of each kind a node has, the CPU of the node too."""
        return {CPU: 1, **dict(self.devices)}

    def __str__(self) -> str:
        if self.devices == ONE_CPU:
            return f"{self.name}: {self.count}"
        devices = ", ".join(f"{device}: {count}" for device, count in self.devices)
        return f"{self.name}: {self.count} {{{devices}}}"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """One device of one node, as `/node:worker:0/cpu:0`."""

    node: str
    node_id: int
    device: str
    device_id: int

    @property
    def node_name(self) -> str:
        """The node, as `worker:0`."""
        return f"{self.node}:{self.node_id}"

    def __str__(self) -> str:
        return f"/node:{self.node_name}/{self.device}:{self.device_id}"


def _check_count(what: str, count: int) -> None:
    if not 1 <= count <= MAX_ID + 1:
        raise PlaceError(f"there can be 1 to {MAX_ID + 1} {what}, not {count}")
