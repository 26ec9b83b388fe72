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
    """The JAX devices of a node, by their names in programs (`gpu:0-1`).

    Copies run in the background while the program continues. In all methods, `to` is a
    key of `sets`.
    """

    sets: Mapping[str, tuple[jax.Device, ...]]
    _shardings: dict[tuple[str, bool], Sharding] = field(default_factory=dict)

    def copy_to_host(self, values: tuple[Any, ...], wait: bool) -> tuple[Any, ...]:
        """Copy arrays to host memory. With `wait`, wait for the copies, for a function
        on the CPU. Without it, reading an array waits for its copy."""
        # Emulated devices are CPU devices, and numpy would use their memory directly. Copy from
        # one CPU device to another instead.
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

        With several devices, the first `rows` arrays are split by rows, and every device
        gets a full copy of the remaining arrays. An array whose rows do not divide evenly
        (a short batch) is copied in full to every device.
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
        # A CPU device may alias numpy memory, but a copy between two CPU devices is a real
        # copy. So the arrays go to the first CPU device first, and from there to `to`.
        arrays = jax.device_put(list(values), self.sets[MEMORY][0])
        return tuple(jax.device_put(arrays, shardings))

    def sharding(self, to: str, rows: bool) -> Sharding:
        """Return the sharding of an array on these devices: replicated, or split by rows."""
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
    """Open the devices that the plan assigns to a node.

    Within the context, the first CPU is JAX's default device. A node that does not use JAX
    does not import it.

    Args:
        me: the node in the plan.
        emulate: whether CPU devices replace all devices.

    Raises:
        RunError: if the machine lacks a device.
    """
    if not me.uses_jax:
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
    """Apply a node's JAX settings in another thread: JAX keeps these settings per thread."""
    if not me.uses_jax:
        yield
        return
    import jax

    default = jax.default_device(devices.sets[MEMORY][0])
    with default, in_precision(plan, me):
        yield


def configure_jax(nodes: Sequence[NodePlan], emulate: bool, *, alone: bool) -> None:
    """Configure JAX for the devices of nodes. Call this before JAX initializes its devices.

    The number of CPU devices is the largest that any node needs. A process that needs only
    CPUs does not look for other devices: otherwise JAX would start CUDA on a machine with
    GPUs, which takes half a gigabyte of each GPU.

    Args:
        nodes: the nodes that run in this process; they share the devices.
        emulate: whether CPU devices replace all devices.
        alone: whether the process runs nothing but these nodes.
    """
    computing = [node for node in nodes if node.uses_jax]
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

    # If JAX is already initialized, `find_device` reports missing devices.
    with suppress(RuntimeError):
        config: Any = jax.config
        if config.jax_num_cpu_devices < most:  # the user may have set it
            config.update("jax_num_cpu_devices", most)
        if only_cpus:
            config.update("jax_platforms", CPU)


def _cpu_count(node: NodePlan, emulate: bool) -> int:
    counts = {CPU: 1, **node.devices}
    return sum(counts.values()) if emulate else counts[CPU]


def find_device(me: NodePlan, name: str) -> jax.Device:
    """Return a device of this machine by its name, such as `gpu:0`.

    Raises:
        RunError: if the machine has no such device.
    """
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
        f"this machine has no {name}, only {existing}",
        hint="run the node on a machine that has it, place its ops elsewhere, or test the"
        " run with --emulate",
    )


def _find_emulated(me: NodePlan, name: str) -> jax.Device:
    """Return the CPU device that emulates a device. A node's own CPUs come first."""
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
    """Return a context that enables 64-bit types in JAX if the precision is float64."""
    if not me.uses_jax or plan.settings.precision != "float64":
        return nullcontext()
    import jax

    context: AbstractContextManager[object] = jax.enable_x64(True)
    return context
