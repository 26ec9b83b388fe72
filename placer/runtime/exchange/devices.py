"""The devices of a node, and copies between them and host memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placer.errors import RunError
from placer.place.node_kinds import CPU
from placer.plan.plan import MEMORY, NodePlan, Plan

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding


@dataclass(slots=True)
class Devices:
    """Sets of JAX devices by their names in programs (`gpu:0-1`), with emulated ones.

    Copies run in the background while the program continues. In all methods `to` is the
    name of a set.
    """

    sets: Mapping[str, tuple[jax.Device, ...]]
    _shardings: dict[tuple[str, bool], Sharding] = field(default_factory=dict)

    def copy_to_host(self, values: tuple[Any, ...], wait: bool) -> tuple[Any, ...]:
        """Copy arrays to host memory.

        With `wait` the copies are complete, for a function on the CPU; otherwise
        whoever reads an array waits for it.
        """
        # Emulated devices are CPU devices, and numpy would see their own memory: copy
        # from one CPU device to another instead.
        devices = {device for value in values for device in value.devices()}
        if all(device.platform == CPU for device in devices):
            return self.copy_to_devices(values, MEMORY)
        from placer.runtime.exchange.transfers import has_page_locked, to_page_locked

        if all(map(has_page_locked, devices)):
            values = tuple(to_page_locked(values))
        else:
            for value in values:
                value.copy_to_host_async()
        return tuple(map(np.asarray, values)) if wait else values

    def copy_to_devices(
        self, values: Sequence[Any], to: str, rows: int = 0
    ) -> tuple[jax.Array, ...]:
        """Copy arrays to devices.

        On several devices each one gets every array, except for the first `rows`
        arrays, which are split by their rows. An array whose rows cannot be split
        evenly (a short batch) is copied to each device.
        """
        import jax

        if not values:
            return ()
        shardings = [
            self.sharding(to, i < rows and value.shape[0] % len(self.sets[to]) == 0)
            for i, value in enumerate(values)
        ]
        if self.sets[to][0].platform != CPU:
            from placer.runtime.exchange.transfers import put

            return put(values, shardings, rows)
        # A CPU device may alias numpy memory. A copy from one CPU device to another is a
        # real copy, so the arrays go to the first one before.
        arrays = jax.device_put(list(values), self.sets[MEMORY][0])
        return tuple(jax.device_put(arrays, shardings))

    def sharding(self, to: str, rows: bool) -> Sharding:
        """Return the sharding of an array on these devices: whole on each, or split by
        rows."""
        key = to, rows
        if key not in self._shardings:
            self._shardings[key] = self._new_sharding(to, rows)
        return self._shardings[key]

    def _new_sharding(self, to: str, rows: bool) -> Sharding:
        from jax.sharding import (
            Mesh,
            NamedSharding,
            PartitionSpec,
            SingleDeviceSharding,
        )

        devices = self.sets[to]
        if len(devices) == 1:
            return SingleDeviceSharding(devices[0])
        mesh = Mesh(np.array(devices), ("rows",))
        split: Any = PartitionSpec
        return NamedSharding(mesh, split("rows") if rows else split())


@contextmanager
def open_devices(me: NodePlan, emulate: bool) -> Iterator[Devices]:
    """Open the devices that the plan names for a node.

    Within the context the first CPU is JAX's default device. Raises RunError if the
    machine does not have a device. A node that computes nothing does not import JAX.

    Args:
        me: the node in the plan.
        emulate: whether CPU devices take the place of all devices.
    """
    if not me.computes:
        yield Devices({})
        return
    import jax

    find = _find_emulated if emulate else find_device
    sets = {
        name: tuple(find(me, device) for device in devices)
        for name, devices in {MEMORY: (MEMORY,), **me.computes}.items()
    }
    with jax.default_device(sets[MEMORY][0]):
        yield Devices(sets)


@contextmanager
def in_another_thread(plan: Plan, me: NodePlan, devices: Devices) -> Iterator[None]:
    """JAX's settings of a node, which are those of a thread, in another thread than the
    one that has opened the devices."""
    if not me.computes:
        yield
        return
    import jax

    default = jax.default_device(devices.sets[MEMORY][0])
    with default, in_precision(plan, me):
        yield


def configure_jax(nodes: Sequence[NodePlan], emulate: bool, *, alone: bool) -> None:
    """Configure JAX for the devices of nodes, before it initializes its own.

    There are as many CPU devices as the node with the most of them needs. A process that
    needs only CPUs does not look for others: on a machine with GPUs, JAX would start
    CUDA, which takes half a gigabyte of each.

    Args:
        nodes: the nodes that run in this process; they share the devices.
        emulate: whether CPU devices take the place of all devices.
        alone: whether the process only runs these nodes.
    """
    computing = [node for node in nodes if node.computes]
    if not computing:
        return
    most = max(_cpu_count(node, emulate) for node in computing)
    needs_others = not emulate and any(
        node.devices.keys() - {CPU} for node in computing
    )
    only_cpus = alone and not needs_others
    if most == 1 and not only_cpus:
        return
    import jax

    # If JAX is already initialized, a missing device is reported when it is looked up.
    with suppress(RuntimeError):
        config: Any = jax.config
        if config.jax_num_cpu_devices < most:  # it may be set by the user
            config.update("jax_num_cpu_devices", most)
        if only_cpus:
            config.update("jax_platforms", CPU)


def _cpu_count(node: NodePlan, emulate: bool) -> int:
    """Return how many CPU devices a node needs."""
    counts = {CPU: 1, **node.devices}
    return sum(counts.values()) if emulate else counts[CPU]


def find_device(me: NodePlan, name: str) -> jax.Device:
    """Return a device of this machine by its name, such as `gpu:0`. Raises RunError if
    there is none."""
    import jax

    kind, _, number = name.partition(":")
    try:
        devices = jax.devices(kind)
    except RuntimeError:
        devices = []
    if int(number) < len(devices):
        return devices[int(number)]
    if kind == CPU and int(number) < me.devices.get(CPU, 1):
        raise _too_late(int(number) + 1, len(devices))
    if devices:
        last = len(devices) - 1
        existing = f"{kind}:0-{last}" if last else f"{kind}:0"
    else:
        existing = ", ".join(dict.fromkeys(each.platform for each in jax.devices()))
    raise RunError(
        f"there is no {name} on this machine, only {existing}",
        hint="run the node on a machine that has it, place its ops elsewhere, or try it"
        " out with --emulate",
    )


def _find_emulated(me: NodePlan, name: str) -> jax.Device:
    """Return the CPU device that emulates a device: a node's CPUs come first, then its
    other devices."""
    import jax

    kind, _, number = name.partition(":")
    index = int(number)
    for other, count in {CPU: 1, **me.devices}.items():
        if other == kind:
            break
        index += count
    devices = jax.devices(CPU)
    if index >= len(devices):
        raise _too_late(_cpu_count(me, emulate=True), len(devices))
    return devices[index]


def _too_late(needed: int, existing: int) -> RunError:
    return RunError(
        f"JAX was initialized in this process with {existing} CPU devices, but {needed}"
        " are needed",
        hint=f"set JAX_NUM_CPU_DEVICES={needed}, or run the nodes as processes",
    )


def in_precision(plan: Plan, me: NodePlan) -> AbstractContextManager[object]:
    """Return a context with JAX's 64-bit types if the plan's precision is float64."""
    if not me.computes or plan.settings.precision != "float64":
        return nullcontext()
    import jax

    context: AbstractContextManager[object] = jax.enable_x64(True)
    return context
