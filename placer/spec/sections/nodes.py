"""Reads the section `nodes`: the cluster, and counts that the caller overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping

from placer.config.checks import check_whole, describe_value
from placer.errors import PlaceError, SpecError, did_you_mean
from placer.graph.model import Memory
from placer.place import Cluster, NodeKind
from placer.spec.decode import check_type, decode
from placer.spec.names import quote
from placer.spec.problems import Problems
from placer.spec.schema import Device, NodeCount, Nodes
from placer.spec.tree import MappingNode, ScalarNode, SpecNode

_KIND = re.compile(r"[a-z][a-z0-9_]*")
_MEMORY = re.compile(r"[1-9][0-9]{0,8}(KiB|MiB|GiB|TiB)")
_KIND_RULE = "use lower case letters, digits and _, and start with a letter"


def read_nodes(
    section: SpecNode | None, counts: Mapping[str, int] | None, problems: Problems
) -> Cluster | None:
    """Read the cluster; report errors and return None.

    `counts` are numbers of nodes by kind, which replace those of the spec. Raises
    SpecError if they are wrong.
    """
    if not isinstance(section, MappingNode):
        if section is not None:
            message = f"'nodes' must be a mapping, not {describe_value(section.value)}"
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


def read_memory(section: SpecNode | None) -> dict[tuple[str, str], Memory]:
    """Return the memory of a device by (node kind, device kind), where the spec has it.

    The section has passed `read_nodes` without errors.
    """
    memory: dict[tuple[str, str], Memory] = {}
    if not isinstance(section, MappingNode):
        return memory
    for name, node in section:
        devices = node.entries.get("devices") if isinstance(node, MappingNode) else None
        if isinstance(devices, MappingNode):
            for device, entry in devices:
                size = (
                    entry.entries.get("memory")
                    if isinstance(entry, MappingNode)
                    else None
                )
                if isinstance(size, ScalarNode):
                    memory[name, device] = Memory(_bytes(size.text), size.span)
    return memory


def _bytes(size: str) -> int:
    number, unit = size[:-3], size[-3:]
    return int(number) << {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[unit]


def to_single_process(cluster: Cluster) -> Cluster:
    """Return a cluster of one worker with one device of the default kind."""
    (device, _), *_ = cluster.default.devices
    return Cluster((NodeKind("worker", 1, ((device, 1),)),))


def _kind(
    name: str, key: ScalarNode, node: SpecNode, problems: Problems
) -> NodeKind | None:
    if not _KIND.fullmatch(name):
        problems.add(f"{quote(name)} is not a valid node kind", key.span, _KIND_RULE)
        return None
    where = f"nodes.{name}"
    if isinstance(node, ScalarNode) and isinstance(node.value, int):
        message = f"{where} must be a mapping, not {describe_value(node.value)}"
        problems.add(message, node.span, f"write {{count: {node.text}}}")
        return None
    if isinstance(node, ScalarNode) and node.value is None:
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
    node: SpecNode | None, where: str, problems: Problems
) -> tuple[tuple[str, int], ...] | None:
    if node is None:
        return (("cpu", 1),)
    if not isinstance(node, MappingNode) or not node.entries:
        what = "empty" if isinstance(node, MappingNode) else describe_value(node.value)
        message = f"'devices' in {where} must be a mapping, not {what}"
        problems.add(message, node.span, "write for example {cpu: 1, gpu: 8}")
        return None
    counted: list[tuple[str, int]] = []
    for name, value in node:
        if not _KIND.fullmatch(name):
            message = f"{quote(name)} is not a valid device kind"
            problems.add(message, node.keys[name].span, _KIND_RULE)
            continue
        count = _device_count(name, value, f"{where}.devices.{name}", problems)
        if count is not None:
            counted.append((name, count))
    return tuple(counted) if len(counted) == len(node.entries) else None


def _device_count(
    name: str, node: SpecNode, where: str, problems: Problems
) -> int | None:
    if not isinstance(node, MappingNode):
        valid = check_type(name, node, NodeCount, problems)
        return int(node.value) if valid and isinstance(node.value, int) else None
    good = decode(node, Device, where, problems)
    memory = good.get("memory")
    if memory is not None and not _MEMORY.fullmatch(memory):
        span = node.entries["memory"].span
        message = f"'memory' must be a size, not {describe_value(memory)}"
        problems.add(message, span, "write for example 80GiB")
        return None
    return good.get("count") if "memory" in good else None


def _check_counts(counts: Mapping[str, int], section: MappingNode) -> None:
    """Check the caller's counts; raise their errors at once, without a position."""
    for name, count in counts.items():
        if name not in section.entries:
            raise SpecError(
                f"no node kind '{name}' in this spec, so there cannot be {count}",
                hint=did_you_mean(name, section.entries),
            )
        problem = check_whole(count, minimum=1)
        if problem:
            raise SpecError(f"the number of nodes of kind '{name}' {problem}")


def _with_counts(cluster: Cluster, counts: Mapping[str, int]) -> Cluster:
    try:
        return Cluster(
            tuple(
                NodeKind(kind.name, counts.get(kind.name, kind.count), kind.devices)
                for kind in cluster.kinds
            )
        )
    except PlaceError as error:
        raise SpecError(error.message, hint=error.hint) from error
