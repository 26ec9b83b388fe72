"""The section `nodes`: the cluster, and how many of each kind the caller wants."""

from __future__ import annotations

import re
from collections.abc import Mapping as Counts

from placer.config.checks import shown, whole
from placer.errors import PlaceError, SpecError, did_you_mean
from placer.graph.model import Memory
from placer.place import Cluster, NodeKind
from placer.spec.decode import decode, fields, problem_free
from placer.spec.names import quoted
from placer.spec.problems import Problems
from placer.spec.schema import Device, Nodes
from placer.spec.tree import Mapping, Node, Scalar

_KIND = re.compile(r"[a-z][a-z0-9_]*")
_MEMORY = re.compile(r"[1-9][0-9]{0,8}(KiB|MiB|GiB|TiB)")
_KIND_RULE = "lower case letters, digits and _, beginning with a letter"


def read_nodes(
    section: Node | None, counts: Counts[str, int] | None, problems: Problems
) -> Cluster | None:
    """The cluster, or None when a part of it is wrong."""
    if not isinstance(section, Mapping):
        if section is not None:
            message = f"'nodes' must be a mapping, not {shown(section.value)}"
            problems.add(message, section.span, "write for example worker: {count: 2}")
        return None
    if not section.entries:
        problems.add("'nodes' declares no node", section.span)
        return None
    kinds = []
    for name, node in section:
        kind = _kind(name, section.keys[name], node, problems)
        if kind is not None:
            kinds.append(kind)
    _check_counts(counts or {}, section)
    if len(kinds) < len(section.entries):
        return None
    cluster = Cluster(tuple(kinds))
    try:
        _ = cluster.default
    except PlaceError as error:
        problems.add(error.message, section.span, error.hint)
        return None
    return _with_counts(cluster, counts) if counts else cluster


def read_memory(section: Node | None) -> dict[tuple[str, str], Memory]:
    """What one device of a node kind holds, by (node, device), where the spec says.

    The section has been read without a mistake.
    """
    found: dict[tuple[str, str], Memory] = {}
    if not isinstance(section, Mapping):
        return found
    for name, node in section:
        devices = node.entries.get("devices") if isinstance(node, Mapping) else None
        if isinstance(devices, Mapping):
            for device, entry in devices:
                size = (
                    entry.entries.get("memory") if isinstance(entry, Mapping) else None
                )
                if isinstance(size, Scalar):
                    found[name, device] = Memory(_bytes(size.text), size.span)
    return found


def _bytes(size: str) -> int:
    number, unit = size[:-3], size[-3:]
    return int(number) << {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[unit]


def one_process(cluster: Cluster) -> Cluster:
    """One worker with one device, of the first kind where ops stand by default."""
    (device, _), *_ = cluster.default.devices
    return Cluster((NodeKind("worker", 1, ((device, 1),)),))


def _kind(name: str, key: Scalar, node: Node, problems: Problems) -> NodeKind | None:
    if not _KIND.fullmatch(name):
        problems.add(f"{quoted(name)} cannot name nodes", key.span, _KIND_RULE)
        return None
    where = f"nodes.{name}"
    if isinstance(node, Scalar) and isinstance(node.value, int):
        message = f"{where} must be a mapping, not {shown(node.value)}"
        problems.add(message, node.span, f"write {{count: {node.text}}}")
        return None
    if isinstance(node, Scalar) and node.value is None:
        return NodeKind(name, 1)
    good = decode(node, Nodes, where, problems)
    if "count" not in good:
        return None
    devices = _devices(good.get("devices"), where, problems)
    if devices is None:
        return None
    try:
        return NodeKind(name, good["count"], devices)
    except PlaceError as error:
        problems.add(error.message, key.span, error.hint)
        return None


def _devices(
    node: Node | None, where: str, problems: Problems
) -> tuple[tuple[str, int], ...] | None:
    if node is None:
        return (("cpu", 1),)
    if not isinstance(node, Mapping) or not node.entries:
        what = "empty" if isinstance(node, Mapping) else shown(node.value)
        message = f"'devices' in {where} must be a mapping, not {what}"
        problems.add(message, node.span, "write for example {cpu: 1, gpu: 8}")
        return None
    counted: list[tuple[str, int]] = []
    for name, value in node:
        if not _KIND.fullmatch(name):
            message = f"{quoted(name)} cannot name devices"
            problems.add(message, node.keys[name].span, _KIND_RULE)
            continue
        count = _device_count(name, value, f"{where}.devices.{name}", problems)
        if count is not None:
            counted.append((name, count))
    return tuple(counted) if len(counted) == len(node.entries) else None


def _device_count(name: str, node: Node, where: str, problems: Problems) -> int | None:
    if not isinstance(node, Mapping):
        field = fields(Device)["count"]
        whole = problem_free(name, node, field.type, field.info, problems)
        return int(node.value) if whole and isinstance(node.value, int) else None
    good = decode(node, Device, where, problems)
    memory = good.get("memory")
    if memory is not None and not _MEMORY.fullmatch(memory):
        span = node.entries["memory"].span
        message = f"'memory' must be a size, not {shown(memory)}"
        problems.add(message, span, "write for example 80GiB")
        return None
    return good.get("count") if "memory" in good else None


def _check_counts(counts: Counts[str, int], section: Mapping) -> None:
    """The caller's own mistakes have no place in the file and are raised at once."""
    for name, count in counts.items():
        if name not in section.entries:
            raise SpecError(
                f"no node '{name}' in this spec, to have {count} of",
                hint=did_you_mean(name, section.entries),
            )
        problem = whole(count, least=1)
        if problem:
            raise SpecError(f"the number of nodes '{name}' {problem}")


def _with_counts(cluster: Cluster, counts: Counts[str, int]) -> Cluster:
    try:
        return Cluster(
            tuple(
                NodeKind(kind.name, counts.get(kind.name, kind.count), kind.devices)
                for kind in cluster.kinds
            )
        )
    except PlaceError as error:
        raise SpecError(error.message, hint=error.hint) from error
