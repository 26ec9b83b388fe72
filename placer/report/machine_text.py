"""Formats the output of `placer info`."""

from __future__ import annotations

from collections.abc import Iterator

from placer.errors import install_extra
from placer.report.machine import Machine
from placer.report.numbers import format_count, format_size, plural

_INDENT = 15


def machine_lines(machine: Machine) -> Iterator[str]:
    """Yield lines about the machine, one or more for each topic."""
    versions = (f"{name} {text}" for name, text in machine.versions.items())
    yield from _topic("versions", ", ".join(versions))
    if machine.conflict is not None:
        yield from _topic("conflict", machine.conflict)
    yield from _topic("system", machine.system)
    if machine.devices_error is not None:
        yield from _topic("devices", f"JAX sees no devices: {machine.devices_error}")
    else:
        yield from _topic(
            "devices",
            *(f"{plural(d.count, d.platform)} ({d.kind})" for d in machine.devices),
        )
    yield from _topic("gpu", *_gpu(machine))
    yield from _topic("cores", _cores(machine))
    memory = machine.memory
    yield from _topic(
        "memory",
        f"{format_size(memory.available)} available of {format_size(memory.total)}",
    )
    yield from _topic("shared memory", _shared_memory(machine))
    limits = (f"{name} {_limit(name, limit)}" for name, limit in machine.limits.items())
    yield from _topic("limits", ", ".join(limits))
    yield from _topic(
        "transports",
        *(
            f"{name}: {'works' if error is None else error}"
            + (", used by default" if name == machine.transport else "")
            for name, error in machine.transports.items()
        ),
        *((machine.transport_error or "").splitlines()),
    )
    yield from _topic("caches", *_caches(machine))
    yield from _topic(
        "optional",
        *(
            f"{name} {text}"
            if text
            else f"{name} is not installed: {install_extra(name)}"
            for name, text in machine.optional.items()
        ),
    )


def _topic(title: str, *texts: str) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield f"{'' if number else title:<{_INDENT}}{text}"


def _gpu(machine: Machine) -> Iterator[str]:
    gpu = machine.gpu
    if gpu.usable:
        driver = f", NVIDIA driver {gpu.driver}" if gpu.driver else ""
        yield f"usable by JAX{driver}"
    else:
        yield f"not usable: {gpu.hint}"


def _cores(machine: Machine) -> str:
    cores = machine.cores
    text = f"{cores.usable} usable of {cores.machine}"
    if cores.limit is not None:
        text += f", limited to the time of {cores.limit:g} cores by the container"
    return text


def _shared_memory(machine: Machine) -> str:
    memory = machine.memory
    if memory.dev_shm is None or memory.dev_shm_free is None:
        mounted = "no /dev/shm"
    else:
        mounted = (
            f"/dev/shm has {format_size(memory.dev_shm_free)} free of"
            f" {format_size(memory.dev_shm)}"
        )
    return f"limited only by memory (memfd); {mounted}, which placer does not need"


def _limit(name: str, limit: int | None) -> str:
    if limit is None:
        return "unlimited"
    return format_size(limit) if name in _IN_BYTES else format_count(limit)


_IN_BYTES = ("locked memory", "address space")


def _caches(machine: Machine) -> Iterator[str]:
    cache = machine.cache
    if cache.folder is None:
        yield "none: this user has no home folder; set PLACER_CACHE to a folder"
        return
    yield cache.folder
    if cache.problem is not None:
        yield f"not used: {cache.problem}"
        return
    if not any(cache.nbytes.values()):
        yield "empty"
        return
    sizes = (f"{name} {format_size(size)}" for name, size in cache.nbytes.items())
    yield f"{', '.join(sizes)}; limit of compiled code: {format_size(cache.limit)}"
