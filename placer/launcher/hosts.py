"""Reads files that assign nodes to machines.

    worker: [10.0.0.1, "[fd00::2]"]
    ps: [host-c, host-d:5000]
    heter: gpu[01-04,07]
    port: 4711
    spare: [10.0.0.9]

A kind of node has one host for each of its nodes, in their order, or a single host for
all of them. Hosts with numbers may be written as in Slurm. Process k of the plan listens
on `port` + k, unless its host names a port. The default of `port` is `BASE_PORT`. The nodes
of a machine that is lost move to the first unused `spare`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from placer.channel.endpoint import parse_endpoint
from placer.errors import PlacerError, did_you_mean
from placer.launcher.engines.host_lists import expand_hosts
from placer.plan.plan import BASE_PORT
from placer.report.numbers import plural
from placer.system.files.regular import read_regular

MAX_BYTES: Final = 1 << 20
"""The largest size of a hosts file in bytes."""
PORT: Final = "port"
SPARE: Final = "spare"
_RANGE: Final = re.compile(r"[^\s\[\]]\[")
"""The beginning of a range of numbers after a name."""


class ListedHosts(NamedTuple):
    """The content of a hosts file.

    Attributes:
        addresses: the address `HOST:PORT` of each node.
        spares: the hosts of the spare machines, without a port.
    """

    addresses: dict[str, str]
    spares: tuple[str, ...]


def read_addresses(
    path: Path, nodes: Sequence[str], base_port: int | None = None
) -> dict[str, str]:
    """Return the address of each node from a hosts file for nodes that are started by hand.

    Raises the errors of `read_hosts`, and PlacerError if the file has spare machines.
    """
    listed = read_hosts(path, nodes, base_port)
    if listed.spares:
        raise PlacerError(
            f"'{path}': '{SPARE}' has no effect on nodes that are started by hand",
            hint=f"remove '{SPARE}', or start all nodes with `placer launch --hosts`",
        )
    return listed.addresses


def read_hosts(
    path: Path, nodes: Sequence[str], base_port: int | None = None
) -> ListedHosts:
    """Return the addresses of nodes and the spare machines from a hosts file.

    Args:
        path: the file.
        nodes: the names of all nodes of a plan, in their order.
        base_port: the port of the first node. Default: the port in the file.

    Raises:
        PlacerError: if the file cannot be read, lacks a host for a node, or has a spare
            machine that cannot be one.
    """
    try:
        hosts = yaml.safe_load(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise PlacerError(f"cannot read '{path}': {error.strerror}") from None
    except yaml.YAMLError as error:
        raise PlacerError(
            f"'{path}' is not YAML: {error}",
            hint='quote a range in a list: ["gpu[01-04]", gpu07]',
        ) from None
    if not isinstance(hosts, dict):
        raise PlacerError(
            f"'{path}' must list the hosts of each kind of node",
            hint="for example: worker: [10.0.0.1, 10.0.0.2]",
        )
    port = hosts.pop(PORT, BASE_PORT)
    if base_port is not None:
        port = base_port
    if type(port) is not int or not 0 < port <= 65536 - len(nodes):
        raise PlacerError(f"'{path}': port {port!r} is not between 1 and 65535")
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        kinds.setdefault(node.rpartition(":")[0], []).append(node)
    spare = [] if SPARE in kinds else hosts.pop(SPARE, [])
    for kind in hosts:
        if kind not in kinds:
            raise PlacerError(
                f"'{path}': the build has no node of kind '{kind}'",
                hint=did_you_mean(str(kind), kinds),
            )
    places: dict[str, str] = {}
    for kind, members in kinds.items():
        places.update(
            zip(members, _hosts_of(path, kind, hosts.get(kind), members), strict=True)
        )
    addresses = {
        node: _address(path, node, places[node], port + i)
        for i, node in enumerate(nodes)
    }
    used = {parse_endpoint(node, address)[0] for node, address in addresses.items()}
    return ListedHosts(addresses, _spares(path, spare, used))


def _spares(path: Path, listed: Any, used: Container[str]) -> tuple[str, ...]:
    """Return the hosts of the spare machines. `used` has those of nodes."""
    if isinstance(listed, str):
        listed = [listed]
    if not isinstance(listed, list) or not all(isinstance(h, str) for h in listed):
        raise PlacerError(
            f"'{path}': '{SPARE}' must list hosts",
            hint=f"for example: {SPARE}: [10.0.0.9, 10.0.0.10]",
        )
    spares: list[str] = []
    for text in (host for each in listed for host in _expand(path, each)):
        if _has_port(text):
            raise PlacerError(
                f"'{path}': the spare machine '{text}' must not have a port",
                hint="nodes keep their ports on a spare machine",
            )
        host, _ = parse_endpoint(SPARE, _address(path, SPARE, text, 1))
        if host in used or host in spares:
            what = "already has nodes" if host in used else "is listed twice"
            raise PlacerError(f"'{path}': the spare machine '{text}' {what}")
        spares.append(host)
    return tuple(spares)


def _hosts_of(path: Path, kind: str, listed: Any, members: Sequence[str]) -> list[str]:
    if isinstance(listed, str):
        found = _expand(path, listed)
        listed = found if len(found) > 1 else found * len(members)
    if not isinstance(listed, list) or not all(isinstance(h, str) for h in listed):
        what = "no host" if listed is None else "something else"
        raise PlacerError(
            f"'{path}' has {what} for the nodes of kind '{kind}'",
            hint=f"write {kind}: [HOST, …] with a host for each of "
            f"{', '.join(members)}",
        )
    hosts = [host for text in listed for host in _expand(path, text)]
    if len(hosts) != len(members):
        raise PlacerError(
            f"'{path}' has {plural(len(hosts), 'host')} for"
            f" {plural(len(members), 'node')} of kind '{kind}': {', '.join(members)}",
            hint=f"write {kind}: HOST to use one host for all nodes",
        )
    return hosts


def _expand(path: Path, text: str) -> list[str]:
    """Return the hosts that a text with ranges names. An IPv6 address has no ranges."""
    if not _RANGE.search(text):
        return [text]
    try:
        return expand_hosts(text)
    except PlacerError as error:
        raise PlacerError(
            f"'{path}': {error.message}", hint="write a range like gpu[01-04,07]"
        ) from None


def _address(path: Path, node: str, host: str, port: int) -> str:
    if _is_bare_ipv6(host):
        host = f"[{host}]"
    address = host if _has_port(host) else f"{host}:{port}"
    try:
        parse_endpoint(node, address)
    except PlacerError as error:
        raise PlacerError(f"'{path}': {error}") from None
    return address


def _is_bare_ipv6(host: str) -> bool:
    return host.count(":") > 1 and not host.startswith("[")


def _has_port(host: str) -> bool:
    return not _is_bare_ipv6(host) and host.rpartition("]")[2].count(":") == 1
