"""Reads the section `nodes`: the cluster. The caller may override the numbers of
nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from placer.compiler.frontend.entries.names import quote
from placer.compiler.frontend.schema import MAX_NODES, Device, NodeCount, Nodes
from placer.compiler.frontend.yaml.decode import check_type, decode
from placer.compiler.frontend.yaml.problems import Problems, all_or_none
from placer.compiler.frontend.yaml.tree import MappingNode, ScalarNode, SpecNode
from placer.compiler.graph.model import Memory
from placer.errors import PlaceError, SpecError, did_you_mean
from placer.place import Cluster, NodeKind
from placer.place.nodes import ONE_CPU
from placer.plan.settings.checks import describe_value

_KIND = re.compile(r"[a-z][a-z0-9_]*")
_MEMORY = re.compile(r"([1-9][0-9]{0,8})(KiB|MiB|GiB|TiB)")
_SHIFTS = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_KIND_RULE = "use lower case letters, digits and _, and start with a letter"


Memories = dict[tuple[str, str], Memory]
"""The memory of a device by (node kind, device kind), if the spec sets it."""


def read_nodes(
    section: SpecNode | None, counts: Mapping[str, int] | None, problems: Problems
) -> tuple[Cluster | None, Memories]:
    """Read the cluster and the memory of its devices. The cluster is None after an
    error. `counts` are numbers of nodes by kind, which replace the numbers in the spec.
    Raises SpecError if `counts` is wrong."""
    memories: Memories = {}
    expected, hint = "'nodes' must be a mapping", "write for example worker: {count: 2}"
    nodes = problems.expect(section, MappingNode, expected, hint)
    if nodes is None:
        return None, memories
    if not nodes.entries:
        problems.add("'nodes' declares no nodes", nodes.span)
        return None, memories
    kinds = all_or_none(
        _read_kind(name, nodes.keys[name], node, memories, problems)
        for name, node in nodes
    )
    _check_counts(counts or {}, nodes)
    if kinds is None:
        return None, memories
    cluster = Cluster(tuple(kinds))
    try:
        _ = cluster.default
    except PlaceError as error:
        problems.add_error(error, span=nodes.span)
        return None, memories
    return _with_counts(cluster, counts) if counts else cluster, memories


def _read_kind(
    name: str, key: ScalarNode, node: SpecNode, memories: Memories, problems: Problems
) -> NodeKind | None:
    if not _KIND.fullmatch(name):
        problems.add(f"{quote(name)} is not a valid node kind", key.span, _KIND_RULE)
        return None
    where = f"nodes.{name}"
    if isinstance(node, ScalarNode) and node.value is not None:
        is_count = type(node.value) is int and 0 < node.value <= MAX_NODES
        hint = f'write {{"count": {node.value if is_count else 1}}}'
        problems.expect(node, MappingNode, f"{where} must be a mapping", hint)
        return None
    if isinstance(node, ScalarNode) and node.value is None:
        return NodeKind(name, 1)
    good = decode(node, Nodes, where, problems)
    if "count" not in good:
        return None
    devices = _read_devices(good.get("devices"), name, memories, problems)
    if devices is None:
        return None
    try:
        return NodeKind(name, good["count"], devices)
    except PlaceError as error:
        problems.add_error(error, span=key.span)
        return None


def _read_devices(
    node: SpecNode | None, kind: str, memories: Memories, problems: Problems
) -> tuple[tuple[str, int], ...] | None:
    if node is None:
        return ONE_CPU
    if not isinstance(node, MappingNode) or not node.entries:
        what = "empty" if isinstance(node, MappingNode) else describe_value(node.value)
        message = f"'devices' in nodes.{kind} must be a mapping, not {what}"
        problems.add(message, node.span, "write for example {cpu: 1, gpu: 8}")
        return None
    counted: list[tuple[str, int]] = []
    for name, value in node:
        if not _KIND.fullmatch(name):
            message = f"{quote(name)} is not a valid device kind"
            problems.add(message, node.keys[name].span, _KIND_RULE)
            continue
        device = _read_device(name, value, f"nodes.{kind}.devices.{name}", problems)
        if device is not None:
            count, memory = device
            counted.append((name, count))
            if memory is not None:
                memories[kind, name] = memory
    return tuple(counted) if len(counted) == len(node.entries) else None


def _read_device(
    name: str, node: SpecNode, where: str, problems: Problems
) -> tuple[int, Memory | None] | None:
    if not isinstance(node, MappingNode):
        is_count = check_type(name, node, NodeCount, problems)
        return (int(str(node.value)), None) if is_count else None
    good = decode(node, Device, where, problems)
    size, memory = good.get("memory"), None
    if size is not None:
        span, match = node.entries["memory"].span, _MEMORY.fullmatch(size)
        if match is None:
            message = f"'memory' must be a size, not {describe_value(size)}"
            problems.add(message, span, "write for example 80GiB")
            return None
        memory = Memory(int(match[1]) << _SHIFTS[match[2]], span)
    return (good["count"], memory) if {"count", "memory"} <= good.keys() else None


def _check_counts(counts: Mapping[str, int], section: MappingNode) -> None:
    """Check the caller's counts. Raises SpecError without a position."""
    for name, count in counts.items():
        if name not in section.entries:
            raise SpecError(
                f"the spec has no node kind '{name}', so its number of nodes cannot be"
                f" {count}",
                hint=did_you_mean(name, section.entries),
            )
        what, is_whole = (
            f"the number of nodes of kind '{name}' must be",
            type(count) is int,
        )
        if not is_whole:
            raise SpecError(f"{what} a whole number, not {describe_value(count)}")
        if count < 1:
            raise SpecError(f"{what} at least 1, not {count}")


def _with_counts(cluster: Cluster, counts: Mapping[str, int]) -> Cluster:
    kinds = (replace(k, count=counts.get(k.name, k.count)) for k in cluster.kinds)
    try:
        return Cluster(tuple(kinds))
    except PlaceError as error:
        raise SpecError(error.message, hint=error.hint) from error
