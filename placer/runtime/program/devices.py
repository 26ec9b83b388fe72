"""The devices that a node computes on, and what is copied between them and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placer.build.plan import MEMORY, Node, Plan
from placer.errors import RunError
from placer.place import CPU, Place

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding


@dataclass(slots=True)
class Devices:
    """JAX's devices by their names in the plan (`gpu:0`), those that are emulated too.

    `to` says devices as places do, `gpu:0-7`. What goes to several is on each of them,
    but for the first `rows` arrays, which are split by their rows; a short batch that
    cannot be split evenly goes to each as it is. Copies are made while the program goes
    on.
    """

    known: Mapping[str, jax.Device]
    _shardings: dict[tuple[str, bool], Sharding] = field(default_factory=dict)

    def take(self, values: tuple[Any, ...], wait: bool) -> tuple[Any, ...]:
        """Copies in the node's memory. With `wait` they are numpy's, for a function on
        the CPU to take; else who takes an array waits for it."""
        if all(device.platform == CPU for device in _devices_of(values)):
            return self.put(values, MEMORY)
        for value in values:
            value.copy_to_host_async()
        return tuple(map(np.asarray, values)) if wait else values

    def put(
        self, values: Sequence[Any], to: str, rows: int = 0
    ) -> tuple[jax.Array, ...]:
        """Copies on these devices."""
        import jax

        if not values:
            return ()
        where = [
            self.sharding(to, i < rows and self._is_even(to, value))
            for i, value in enumerate(values)
        ]
        here = list(values)
        first: Any = self.known[named(to)[0]]
        if first.platform == CPU:
            # It looks into memory itself, and a copy is to be one: from device to device.
            here = jax.device_put(here, self.known[MEMORY])
        return tuple(jax.device_put(here, where))

    def _is_even(self, to: str, value: Any) -> bool:
        count: int = value.shape[0]
        return count % len(named(to)) == 0

    def sharding(self, to: str, rows: bool = False) -> Sharding:
        """How an array lies on these devices: whole on each, or split by rows."""
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

        devices = [self.known[name] for name in named(to)]
        if len(devices) == 1:
            return SingleDeviceSharding(devices[0])
        mesh = Mesh(np.array(devices), ("rows",))
        split: Any = PartitionSpec
        return NamedSharding(mesh, split("rows") if rows else split())


def named(text: str) -> tuple[str, ...]:
    """Every device of `gpu:0-7` by name: `gpu:0`, `gpu:1`, …"""
    place = Place.parse(f"/{text}")
    assert isinstance(place.device_ids, tuple), text
    return tuple(f"{place.device}:{number}" for number in place.device_ids)


def _devices_of(values: Sequence[jax.Array]) -> set[Any]:
    return {device for value in values for device in value.devices()}


@contextmanager
def opened(me: Node, emulate: bool) -> Iterator[Devices]:
    """The devices that the plan says, of which the first CPU is where functions run that
    are given nothing of another; RunError where one is not there.

    A node that computes nothing does without JAX.
    """
    if not me.computes:
        yield Devices({})
        return
    import jax

    needed = dict.fromkeys(
        [MEMORY, *(name for group in me.computes for name in named(group))]
    )
    find = _emulated if emulate else _found
    known = {name: find(me, name) for name in needed}
    with jax.default_device(known[MEMORY]):
        yield Devices(known)


def reserve(nodes: Sequence[Node], emulate: bool, *, alone: bool) -> None:
    """Let JAX have as many CPU devices as these nodes take, each by itself, unless it
    has begun already.

    `alone` says that the process is the nodes': where devices are emulated, no other
    platform is looked for.
    """
    most = max((_cpus(node, emulate) for node in nodes if node.computes), default=0)
    if most == 0 or (most == 1 and not emulate):
        return
    import jax

    # Too late is told by name, when a device is missing.
    with suppress(RuntimeError):
        config: Any = jax.config
        config.update("jax_num_cpu_devices", most)
        if emulate and alone:
            config.update("jax_platforms", "cpu")


def _cpus(node: Node, emulate: bool) -> int:
    """How many CPU devices a node takes."""
    counts = {CPU: 1, **node.devices}
    return sum(counts.values()) if emulate else counts[CPU]


def _found(me: Node, name: str) -> jax.Device:
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
    found = dict.fromkeys(device.platform for device in jax.devices())
    raise RunError(
        f"there is no {name} here, only {', '.join(found)}",
        hint="run the node on a machine that has it, place its ops elsewhere, or try it "
        "out with --emulate",
    )


def _emulated(me: Node, name: str) -> jax.Device:
    """A CPU device for each of a node's devices: its CPUs first."""
    import jax

    kind, _, number = name.partition(":")
    at = int(number)
    for other, count in {CPU: 1, **me.devices}.items():
        if other == kind:
            break
        at += count
    devices = jax.devices(CPU)
    if at >= len(devices):
        raise _too_late(_cpus(me, emulate=True), len(devices))
    return devices[at]


def _too_late(needed: int, found: int) -> RunError:
    return RunError(
        f"JAX has begun in this process with {found} CPU devices, and {needed} are "
        "needed",
        hint=f"set JAX_NUM_CPU_DEVICES={needed}, or run the nodes as processes",
    )


@contextmanager
def in_precision(plan: Plan, me: Node) -> Iterator[None]:
    """With 64-bit types where the plan is of float64."""
    if me.computes and plan.precision == "float64":
        import jax

        with jax.enable_x64(True):
            yield
    else:
        yield
