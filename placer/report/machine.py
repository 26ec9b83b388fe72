"""Inspects this machine: devices, cores, memory, transports and caches."""

from __future__ import annotations

import os
import platform
import resource
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

import placer
from placer.channel.keys import new_key
from placer.channel.ports import free_endpoints
from placer.channel.session import Session
from placer.channel.transport import choose_transport
from placer.channel.types import Key
from placer.errors import EXTRAS, PlacerError
from placer.system.caches.folder import LIMIT, folder_problem, user_cache
from placer.system.cores import usable_cores
from placer.system.distribution import other_distribution, remove_other
from placer.system.memory.limit import available_nbytes

_PACKAGES: Final = ("jax", "jaxlib", "numpy", "pyarrow", "numba")
OPTIONAL: Final = (*EXTRAS, "tensorboard", "ray")
"""The extras that `placer info` lists."""
_DISTRIBUTIONS: Final = {"haiku": "dm-haiku", "tensorboard": "tensorboardX"}
"""The distributions with other names than their extras."""
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_SHARED: Final = Path("/dev/shm")
_OWN_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")
_TRIAL_TIMEOUT: Final = 5.0


class Device(Struct, frozen=True):
    """A kind of device that JAX sees, and the number of such devices."""

    platform: str
    kind: str
    count: int


class Memory(Struct, frozen=True):
    """Memory of the machine in bytes: total, available, and the size and free part of
    /dev/shm.

    /dev/shm is None if it does not exist.
    """

    total: int
    available: int
    dev_shm: int | None
    dev_shm_free: int | None


class Cores(Struct, frozen=True):
    """The cores of the machine, and the cores that this process may use.

    `limit` is the container's limit in cores; None without a limit.
    """

    machine: int
    usable: int
    limit: float | None


class Cache(Struct, frozen=True):
    """The folder of caches, and its bytes by kind of content.

    `folder` is None for a user without a home folder. `problem` says why the folder is
    not used, if so; `nbytes` is then empty, as for a folder that does not exist yet.
    """

    folder: str | None
    limit: int
    nbytes: dict[str, int]
    problem: str | None = None


class Gpu(Struct, frozen=True):
    """Whether JAX can use a GPU.

    Attributes:
        driver: The version of the NVIDIA driver.
        plugin: The installed package of JAX for GPUs.
        hint: How to make a GPU usable.
    """

    usable: bool
    driver: str | None
    plugin: str | None
    hint: str | None


class Machine(Struct, frozen=True):
    """The content of `placer info`.

    Attributes:
        versions: Versions of placer, Python and the packages it uses, by name.
        conflict: The other program with a package `placer`, and how to remove it.
        system: The operating system and the processor.
        devices: The devices that JAX sees; empty if JAX fails.
        devices_error: Why JAX sees no devices.
        gpu: Whether GPUs can be used.
        cores: The cores.
        memory: The memory.
        limits: The limits of a process; None for no limit.
        transports: For each transport, None if a test message arrived, else the error.
        transport: The default transport of runs; None if no transport works.
        transport_error: Why no transport works.
        cache: The caches.
        optional: Versions of optional packages; None if not installed.
    """

    versions: dict[str, str]
    conflict: str | None
    system: str
    devices: tuple[Device, ...]
    devices_error: str | None
    gpu: Gpu
    cores: Cores
    memory: Memory
    limits: dict[str, int | None]
    transports: dict[str, str | None]
    transport: str | None
    transport_error: str | None
    cache: Cache
    optional: dict[str, str | None]


def inspect_machine() -> Machine:
    """Inspect this machine. Imports JAX, and tests each transport with a message."""
    devices, error = _devices()
    versions = {"placer": placer.__version__, "python": platform.python_version()}
    versions |= {name: version(name) for name in _PACKAGES}
    transport = transport_error = None
    try:
        chosen = choose_transport("auto")
        # "auto" means shared memory on one machine.
        transport = "shared" if chosen == "auto" else chosen
    except PlacerError as choice_error:
        transport_error = str(choice_error)
    return Machine(
        versions,
        _conflict(),
        f"{platform.system()} {platform.release()}, {platform.machine()}",
        devices,
        error,
        _gpu(devices),
        _cores(),
        _memory(),
        _limits(),
        {name: _try_transport(name) for name in ("shared", "tcp")},
        transport,
        transport_error,
        _cache(),
        {name: _version(_DISTRIBUTIONS.get(name, name)) for name in OPTIONAL},
    )


def _conflict() -> str | None:
    other = other_distribution()
    if other is None:
        return None
    return (
        f"the distribution '{other.name}' {other.version} has a package `placer`, which"
        f" is another program: {remove_other(other)}"
    )


def _devices() -> tuple[tuple[Device, ...], str | None]:
    # Do not reserve GPU memory: another run on this machine may need it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax

        found = [(each.platform, each.device_kind) for each in jax.devices()]
        if all(platform != "cpu" for platform, _ in found):
            found += [(each.platform, each.device_kind) for each in jax.devices("cpu")]
    except Exception as error:  # JAX raises any error of its plugins.
        # The message may be empty, for example for a platform without a plugin.
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        return (), reason + _chosen_platforms()
    kinds = dict.fromkeys(found)
    return tuple(Device(*kind, count=found.count(kind)) for kind in kinds), None


def _chosen_platforms() -> str:
    platforms = os.environ.get("JAX_PLATFORMS")
    return f"; JAX_PLATFORMS is {platforms}" if platforms else ""


def _gpu(devices: tuple[Device, ...]) -> Gpu:
    driver = _driver_version()
    plugin = next(
        (
            f"{name} {each.version}"
            for each in distributions()
            if (name := str(each.name)).startswith("jax-cuda") and "plugin" in name
        ),
        None,
    )
    if any(each.platform != "cpu" for each in devices):
        return Gpu(True, driver, plugin, None)
    hint = None
    if driver is not None and plugin is None:
        # The drivers that the CUDA wheels need:
        # docs.jax.dev/en/latest/installation.html
        extra = "cuda13" if int(driver.partition(".")[0]) >= 580 else "cuda12"
        hint = f"JAX is installed without GPU support: pip install -U 'jax[{extra}]'"
    elif driver is not None:
        hint = f"JAX does not see the GPU, although {plugin} is installed"
        hint += _chosen_platforms()
    elif plugin is not None:
        hint = f"{plugin} is installed, but this machine has no NVIDIA driver"
    else:
        hint = "no NVIDIA driver; --emulate uses CPU devices in place of GPUs"
    return Gpu(False, driver, plugin, hint)


def _driver_version() -> str | None:
    try:
        words = _DRIVER.read_text().split()
    except OSError:
        return None
    return next(
        (w for w in words if w.count(".") >= 1 and w.replace(".", "").isdigit()), "0"
    )


def _cores() -> Cores:
    machine, usable = os.cpu_count() or 1, usable_cores()
    limit = None
    with suppress(OSError, ValueError):
        quota, period = _OWN_CPU_LIMIT.read_text().split()
        limit = None if quota == "max" else int(quota) / int(period)
    return Cores(machine, usable, limit)


def _memory() -> Memory:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = free = None
    with suppress(OSError):
        status = os.statvfs(_SHARED)
        size = status.f_blocks * status.f_frsize
        free = status.f_bavail * status.f_frsize
    return Memory(total, available_nbytes(), size, free)


def _limits() -> dict[str, int | None]:
    names = {
        "open files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked memory": resource.RLIMIT_MEMLOCK,
        "address space": resource.RLIMIT_AS,
    }
    limits = {name: resource.getrlimit(key)[0] for name, key in names.items()}
    return {
        name: None if limit == resource.RLIM_INFINITY else limit
        for name, limit in limits.items()
    }


def _try_transport(name: str) -> str | None:
    """Send a test message between two channels. Return the error, if any."""
    nodes = ("worker:0", "worker:1")
    job = secrets.token_hex(8)
    secret = new_key()
    sent = np.arange(1 << 16, dtype=np.float32)
    channels = []
    try:
        endpoints = free_endpoints(nodes)
        for node in nodes:
            channels.append(
                Session(
                    node,
                    endpoints,
                    job,
                    transport=name,
                    key=secret,
                    join_timeout=_TRIAL_TIMEOUT,
                    deadline=_TRIAL_TIMEOUT,
                )
            )
        with ThreadPoolExecutor(len(nodes)) as pool:
            for joining in [pool.submit(each.join) for each in channels]:
                joining.result()
        key = Key(0, 0)
        channels[0].send(nodes[1], key, [sent])
        (received,) = channels[1].receive(nodes[0], key)
        if not np.array_equal(sent, received):
            return "the received message differs from the sent message"
    except (PlacerError, OSError) as error:
        return str(error)
    finally:
        with ThreadPoolExecutor(len(nodes)) as pool:
            for channel in channels:
                pool.submit(channel.close)
    return None


def _cache() -> Cache:
    base = user_cache()
    if base is None:
        return Cache(None, LIMIT, {})
    if not base.exists():
        return Cache(str(base), LIMIT, {})
    if (problem := folder_problem(base)) is not None:
        return Cache(str(base), LIMIT, {}, problem)
    parts = {
        "compiled programs": tuple(base.glob("xla-*")),
        "compiled updates": (base / "kernels",),
        "logs of failed runs": (base / "logs",),
    }
    return Cache(
        str(base),
        LIMIT,
        {name: sum(map(_size, folders)) for name, folders in parts.items()},
    )


def _size(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # Another process has removed the file.
                total += os.stat(os.path.join(at, name), follow_symlinks=False).st_size
    return total


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
