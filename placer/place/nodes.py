"""The parts of a cluster: kinds of nodes, and single devices of single nodes."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from placer.errors import PlaceError
from placer.place.ids import MAX_ID
from placer.place.node_kinds import CPU, HETER, NodeId
from placer.place.place import Place

# A resolved place is a tuple of its devices, so this bounds the memory that it takes.
MAX_DEVICES = 1_000_000
"""The most devices that all nodes of one kind may have together."""

ONE_CPU = ((CPU, 1),)


class NodeKind(Struct, frozen=True):
    """The nodes of one name: their number, and the devices that each of them has.

    A node that declares only other devices has one CPU besides them. Each node is a
    process; with `threads`, several threads of it are nodes of their own, such as
    `worker:0.0` and `worker:0.1`, which share the devices.

    `str` is the form in the text of a graph, with the devices in braces unless they are
    one CPU, and the number of threads of all processes: `worker: 2`,
    `worker: 2 {cpu: 1, gpu: 8}`, `worker: 2 with 8 threads`.

    Args:
        name: The name of the kind, as in places: lower case letters, digits and `_`.
        count: The number of processes.
        devices: Pairs of a device kind and the number of such devices on each node.
        threads: The number of threads of all processes together, divided as evenly as
            possible, the first ones having more. None: a process is one node.

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
    threads: int | None = None

    def __post_init__(self) -> None:
        Place(node=self.name)
        _check_count(f"nodes '{self.name}'", self.count)
        if self.threads is not None:
            _check_count(f"threads of nodes '{self.name}'", self.threads)
            if self.threads < self.count:
                raise PlaceError(
                    f"{self.count} nodes '{self.name}' cannot have {self.threads} threads"
                )
        for device, count in self.devices:
            Place(device=device)
            _check_count(f"devices '{device}' of node '{self.name}'", count)
        names = {device for device, _ in self.devices}
        if not names or len(names) < len(self.devices):
            raise PlaceError(
                f"node '{self.name}' must declare at least one device kind, each once"
            )
        total = self.size * sum(count for _, count in self.devices)
        if total > MAX_DEVICES:
            raise PlaceError(
                f"nodes '{self.name}' have {total} devices, more than {MAX_DEVICES}"
            )

    @property
    def counts(self) -> dict[str, int]:
        """The number of devices of each kind on a node, including the node's CPU."""
        return {CPU: 1, **dict(self.devices)}

    @property
    def size(self) -> int:
        """The number of nodes: of processes, or of all their threads."""
        return self.threads or self.count

    @property
    def most_threads(self) -> int:
        """The number of threads of the first process, which has the most."""
        return -(-self.size // self.count)

    def nodes(self) -> tuple[NodeId, ...]:
        """Return all nodes in order.

        The threads of one process follow each other, so that they share a contiguous part
        of a batch. Those of heter nodes are in the order of the workers that they compute
        for: the i-th of m has the workers i, i + m, i + 2m, ….
        """
        if self.threads is None:
            return tuple(NodeId.of(self.name, number) for number in range(self.count))
        if self.name == HETER:
            return tuple(
                NodeId.of(self.name, i % self.count, i // self.count)
                for i in range(self.threads)
            )
        fewest, more = divmod(self.threads, self.count)
        return tuple(
            NodeId.of(self.name, number, thread)
            for number in range(self.count)
            for thread in range(fewest + (number < more))
        )

    def __str__(self) -> str:
        text = f"{self.name}: {self.count}"
        if self.threads is not None:
            text += f" with {self.threads} threads"
        if self.devices == ONE_CPU:
            return text
        devices = ", ".join(f"{device}: {count}" for device, count in self.devices)
        return f"{text} {{{devices}}}"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """One device of one node, such as `/node:worker:0/cpu:0`."""

    node: str
    node_id: int
    device: str
    device_id: int
    thread: int | None = None

    @property
    def node_name(self) -> NodeId:
        """The node, such as `worker:0`."""
        return NodeId.of(self.node, self.node_id, self.thread)

    def __str__(self) -> str:
        return f"/node:{self.node_name}/{self.device}:{self.device_id}"


def _check_count(what: str, count: int) -> None:
    if not 1 <= count <= MAX_ID + 1:
        raise PlaceError(f"there can be 1 to {MAX_ID + 1} {what}, not {count}")
