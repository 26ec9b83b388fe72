"""The parts of a cluster: kinds of nodes, and single devices of single nodes."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from placer.errors import PlaceError
from placer.place.ids import MAX_ID
from placer.place.node_kinds import CPU, HETER, NodeId
from placer.place.place import Place

# A resolved place is a tuple of devices, so this limits its memory.
MAX_DEVICES = 1_000_000
"""The largest number of devices of all nodes of one kind."""

ONE_CPU = ((CPU, 1),)


class NodeKind(Struct, frozen=True):
    """The nodes of one kind: their number, and the devices of each.

    A node that declares only accelerators also has one CPU. Each node is a process.
    With `threads`, the threads of a process are nodes, such as `worker:0.0` and
    `worker:0.1`, and share its devices.

    `str` returns the form in the text of a graph: `worker: 2`, `worker: 2 {cpu: 1, gpu:
    8}`, `worker: 2 with 8 threads`. A single CPU is left out; threads are counted over
    all processes.

    Args:
        name: The name of the kind, as in places: lower case letters, digits and `_`.
        count: The number of processes.
        devices: Pairs of a device kind and the number of such devices on each node.
        threads: The number of threads in all processes, divided as evenly as possible;
            the first processes have more. None: a process is one node.

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
                f"node '{self.name}' must declare at least one device kind, and each"
                " only once"
            )
        total = self.size * sum(count for _, count in self.devices)
        if total > MAX_DEVICES:
            raise PlaceError(
                f"nodes '{self.name}' have {total} devices, more than {MAX_DEVICES}"
            )

    @property
    def counts(self) -> dict[str, int]:
        """The number of devices of each kind on a node, including its CPU."""
        return {CPU: 1, **dict(self.devices)}

    @property
    def size(self) -> int:
        """The number of nodes: processes, or threads if threads are nodes."""
        return self.threads or self.count

    @property
    def most_threads(self) -> int:
        """The number of threads of the first process, which has the most threads."""
        return -(-self.size // self.count)

    def nodes(self) -> tuple[NodeId, ...]:
        """Return all nodes in order. Threads of one process follow each other, so they
        share a contiguous part of a batch. Threads of heter nodes are in the order of
        their workers: the i-th of m heter nodes has the workers i, i + m, i + 2m, …."""
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
        raise PlaceError(
            f"the number of {what} must be from 1 to {MAX_ID + 1}, not {count}"
        )
