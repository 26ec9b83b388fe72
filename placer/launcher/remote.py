"""Starts nodes on other machines over ssh.

The launcher starts `placer run -` on the machine of each node. It sends the key and the
build through ssh's standard input (`placer.launcher.delivery`). When standard input
closes, the node ends (`placer.launcher.remote_node`). The log of a node is the standard
error of the node and of ssh. The node sends its events over the channel of the run to the
control node, and over standard output to the launcher.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from placer.channel.endpoint import parse_endpoint
from placer.channel.keys import find_key, new_key
from placer.errors import PlacerError
from placer.launcher.delivery import write_delivery
from placer.launcher.hosts import read_hosts
from placer.launcher.node_command import PACED, node_arguments
from placer.launcher.node_process import NodeProcess, start_ssh
from placer.launcher.watched_node import StartNode
from placer.plan.plan import Plan
from placer.runtime.callbacks.event_queue import write_all
from placer.runtime.control.options import Options
from placer.runtime.process.interpreter import NODE_VARIABLES, interpreter

CONNECT_TIMEOUT: Final = 30
"""Seconds in which a machine must answer ssh."""
ALIVE_INTERVAL: Final = 15
"""Seconds between two keep-alive messages of ssh to a silent machine."""


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
    starts_again: ClassVar[bool] = False


def remote_starter(
    build: Path, plan: Plan, options: Options, hosts: Hosts, *, paced: bool = False
) -> StartNode:
    """Return the function that starts the nodes of a build on their machines. If `paced`,
    the steps wait for the launcher's callbacks. Raises PlacerError if the hosts or the
    key cannot be used."""
    endpoints = remote_endpoints(plan, options, hosts)
    ssh = _ssh_command(hosts.ssh, options.lost_after)
    delivery = write_delivery(build, plan, find_key(options.key) or new_key())

    def start(
        node: str, log: Path, is_control: bool, *, attempt: int | None = None
    ) -> NodeProcess:
        assert attempt is None, "`check_launch` refuses --restarts"
        host, _ = parse_endpoint(node, endpoints[node])
        remote = remote_command(node, endpoints, options, hosts, paced=paced)
        child = start_ssh(node, [*ssh, "--", host, remote], log, host)
        assert child.order_fd is not None
        # In a thread, because ssh reads only after it has connected.
        write = partial(_deliver, delivery, os.dup(child.order_fd))
        child.threads.begin(write, "placer delivery")
        return child

    return start


def remote_endpoints(plan: Plan, options: Options, hosts: Hosts) -> dict[str, str]:
    """Return the address of each node. Raises PlacerError if the hosts cannot be used."""
    if hosts.data is not None and not hosts.data.is_absolute():
        raise PlacerError(
            f"--data '{hosts.data}' is a relative path",
            hint="with --hosts, give an absolute path on these machines",
        )
    return read_hosts(hosts.file, [*plan.processes], options.base_port)


def remote_command(
    node: str,
    endpoints: Mapping[str, str],
    options: Options,
    hosts: Hosts,
    *,
    paced: bool = False,
) -> str:
    """Return the shell command that runs a node on another machine."""
    variables = [f"{name}={value}" for name, value in NODE_VARIABLES.items()]
    command = interpreter(python=hosts.python)
    words = ["env", *variables, *command, "run", "-", "--node", node]
    listed = ",".join(f"{name}={address}" for name, address in endpoints.items())
    words += ["--endpoints", listed]
    words += node_arguments(replace(options, key=None, base_port=None))
    words += [PACED] if paced else []
    if hosts.data is not None:
        words += ["--data", str(hosts.data)]
    return f"exec {shlex.join(words)}"


def _ssh_command(ssh: str, lost_after: float) -> list[str]:
    """Return an ssh command that never prompts and ends if the machine is silent."""
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise PlacerError(f"--ssh '{ssh}' is not a command: {error}") from None
    count = max(1, math.ceil(lost_after / ALIVE_INTERVAL))
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": CONNECT_TIMEOUT,
        "ServerAliveInterval": ALIVE_INTERVAL,
        "ServerAliveCountMax": count,
    }
    words.append("-T")
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return words


def _deliver(delivery: bytes, fd: int) -> None:
    """Write a delivery and close the descriptor; the first order comes later."""
    # If ssh has ended, its exit status and log give the reason.
    with contextlib.suppress(BrokenPipeError), open(fd, "wb", buffering=0):
        write_all(fd, delivery)
