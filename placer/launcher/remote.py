"""Starts nodes on other machines over ssh.

The launcher starts `placer run -` on the machine of each node. It sends the key and the
build through ssh's standard input (`placer.launcher.delivery`). When standard input
closes, the node ends (`placer.launcher.remote_node`). The log of a node is the standard
error of the node and of ssh. The node sends its events over the channel of the run to the
control node, and over standard output to the launcher.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from placer.channel.endpoint import parse_endpoint
from placer.channel.keys import find_key, new_key
from placer.errors import PlacerError
from placer.launcher.delivery import write_delivery
from placer.launcher.hosts import SPARE, ListedHosts, read_hosts
from placer.launcher.machines import CONNECT_TIMEOUT, Machines
from placer.launcher.node_command import PACED, node_arguments
from placer.launcher.node_process import NodeProcess, start_ssh
from placer.launcher.spares import SpareChecks, check_command, run_words
from placer.launcher.watched_node import StartNode
from placer.place.node_kinds import NodeId
from placer.plan.plan import Plan
from placer.runtime.control.options import Options

ALIVE_INTERVAL: Final = 3
"""Seconds between two keep-alive messages of ssh to a silent machine, at most."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The machines of a run, and the settings to start nodes there.

    Attributes:
        file: the hosts file.
        ssh: the ssh command, with options.
        python: the interpreter on the machines. Default: the path of this interpreter.
        data: the data folder on the machines. Default: PLACER_DATA there.
    """

    file: Path
    ssh: str = "ssh"
    python: str | None = None
    data: Path | None = None


@dataclass(frozen=True)
class RemoteNodes:
    """The nodes of a build on their machines.

    Attributes:
        start: starts a node.
        machines: the machine of each node, and the spares.
    """

    start: StartNode
    machines: Machines


def remote_nodes(
    build: Path,
    plan: Plan,
    options: Options,
    hosts: Hosts,
    *,
    run_id: str = "",
    paced: bool = False,
) -> RemoteNodes:
    """Return the functions that start the nodes of a build on their machines. If `paced`,
    the steps wait for the launcher's callbacks. Raises PlacerError if the hosts or the
    key cannot be used."""
    listed = remote_hosts(plan, options, hosts)
    ssh = ssh_command(hosts.ssh, options.lost_after)
    delivery = write_delivery(build, plan, find_key(options.key) or new_key())
    control = NodeId(plan.control).process
    checks = SpareChecks(
        [*ssh, "-o", f"ConnectTimeout={CONNECT_TIMEOUT}"],
        check_command(hosts.python, hosts.data),
        delivery,
        parse_endpoint(control, listed.addresses[control])[0],
        listed.spares,
        options.join_timeout / 2,
    )
    machines = Machines(
        listed.addresses, [*listed.spares], options.join_timeout, checks
    )

    def start(
        node: str, log: Path, is_control: bool, *, attempt: int | None = None
    ) -> NodeProcess:
        remote = remote_command(
            node,
            machines.addresses,
            options,
            hosts,
            paced=paced,
            run_id=run_id,
            attempt=attempt or 0,
        )
        host = machines.host_of(node)
        limit = ["-o", f"ConnectTimeout={machines.connect_timeout(node)}"]
        child = start_ssh(
            node,
            [*ssh, *limit, "--", host, remote],
            log,
            host,
            again=attempt is not None,
        )
        if is_control and not checks.is_done:
            machines.hold(child, delivery)
        else:
            child.deliver(delivery)
        return child

    return RemoteNodes(start, machines)


def remote_hosts(plan: Plan, options: Options, hosts: Hosts) -> ListedHosts:
    """Return the address of each node, and the spare machines. Raises PlacerError if the
    hosts cannot be used."""
    if hosts.data is not None and not hosts.data.is_absolute():
        raise PlacerError(
            f"--data '{hosts.data}' is a relative path",
            hint="with --hosts, give an absolute path on these machines",
        )
    listed = read_hosts(hosts.file, [*plan.processes], options.base_port)
    if listed.spares and not options.restarts:
        raise PlacerError(
            f"'{hosts.file}': '{SPARE}' has no effect without 'restarts' (--restarts N)",
            hint=f"a failure ends the run: add --restarts 3, or remove '{SPARE}'",
        )
    return listed


def remote_command(
    node: str,
    endpoints: Mapping[str, str],
    options: Options,
    hosts: Hosts,
    *,
    paced: bool = False,
    run_id: str = "",
    attempt: int = 0,
) -> str:
    """Return the shell command that runs a node on another machine. For `run_id` and
    `attempt`, see `node_command`."""
    words = [*run_words(hosts.python), "--node", node]
    listed = ",".join(f"{name}={address}" for name, address in endpoints.items())
    words += ["--endpoints", listed]
    words += node_arguments(replace(options, key=None, base_port=None))
    words += [PACED] if paced else []
    words += ["--run-id", run_id] if run_id else []
    words += ["--attempt", str(attempt)] if attempt else []
    if hosts.data is not None:
        words += ["--data", str(hosts.data)]
    return f"exec {shlex.join(words)}"


def ssh_command(ssh: str, lost_after: float) -> list[str]:
    """Return an ssh command that never prompts. It ends if the machine is silent for
    `lost_after` seconds."""
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise PlacerError(f"--ssh '{ssh}' is not a command: {error}") from None
    interval = max(1, min(ALIVE_INTERVAL, int(lost_after / 4)))
    options = {
        "BatchMode": "yes",
        "ServerAliveInterval": interval,
        # ssh ends when the next message is due, at most two intervals after `lost_after`.
        "ServerAliveCountMax": math.ceil(lost_after / interval),
    }
    words.append("-T")
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return words
