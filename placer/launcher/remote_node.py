"""A node that a launcher on another machine has started: `placer run -`.

The process that ssh starts receives the build and forks. The child is the node. The
parent waits for the child and kills it, with all its processes, when standard input
closes: the launcher has ended, or no longer needs the node. This also ends a node that is
frozen or holds the interpreter lock. In a run with `--restarts`, the parent also ends when a
newcomer takes the place of the node (`placer.launcher.predecessor`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from placer.channel.keys import VARIABLE, RunKey, pass_key
from placer.launcher.child import Child
from placer.launcher.delivery import read_delivery, unpack
from placer.launcher.predecessor import newcomer, take_place
from placer.runtime.signals.signals import END_SIGNALS, shell_status

END_GRACE: Final = 3.0
"""Seconds that a node has to tell its peers why it ends, after standard input has closed."""


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """The build of a node, and the descriptors for its events and orders."""

    build: Path
    report_fd: int
    order_fd: int


def become_node(node: str = "", run: str = "") -> RemoteNode:
    """Receive a build on standard input, and continue as the process of its node.

    Events go to the original standard output. The output of the process goes to standard
    error, which is its log. The signals that end a run stay blocked in the node.

    Args:
        node: the name of the node.
        run: the id of a run with `--restarts`. An earlier process of the node in this run is
            ended first.

    Raises:
        PlacerError: if the build cannot be received, or an earlier process does not end.
    """
    delivery = read_delivery(0)
    place = take_place(run, node) if run else None
    build = unpack(delivery)
    os.environ[VARIABLE] = f"/proc/self/fd/{pass_key(RunKey(delivery.secret))}"
    # Blocked until the node can report signals and its parent can pass them on.
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    if pid := os.fork():
        _wait_for(Child(pid), place)
    if place is not None:
        place.close()
    os.setsid()
    report_fd, order_fd = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return RemoteNode(build, report_fd, order_fd)


def _wait_for(node: Child, place: socket.socket | None) -> NoReturn:
    """Wait for the node and exit with its status, or with 128 + N after signal N."""
    for number in END_SIGNALS:
        signal.signal(number, lambda given, _: node.signal(given))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    os.close(1)  # The launcher must see the end of the events when the node ends.
    poll = select.poll()
    poll.register(node.pidfd, select.POLLIN)
    poll.register(0, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported.
    if place is not None:
        poll.register(place, select.POLLIN)
    asked: socket.socket | None = None  # stays open until this process ends
    while asked is None and (ready := {fd for fd, _ in poll.poll()}):
        if place is None or ready != {place.fileno()}:
            break
        asked = newcomer(place)
    code = node.end(END_GRACE if asked is None else 0.0)
    sys.stderr.flush()
    os._exit(shell_status(-signal.SIGKILL if code is None else code))
