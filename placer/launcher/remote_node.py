"""A node that a launcher on another machine has started: `placer run -`.

The process that ssh starts receives the build, and continues as two. The child is the
node. The parent waits for it, and ends it with all that it has started once standard
input has ended: the launcher has ended, or does not need it. So a node that is frozen,
or that holds the interpreter, ends too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from placer.channel.keys import VARIABLE, RunKey, pass_key
from placer.launcher.child import Child
from placer.launcher.delivery import read_delivery, unpack
from placer.runtime.signals.signals import END_SIGNALS, shell_status

END_GRACE: Final = 3.0
"""Seconds in which a node ends by itself after standard input has ended, and tells its
peers why."""


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """The build of a node, and the descriptors for its events and orders."""

    build: Path
    report_fd: int
    order_fd: int


def become_node() -> RemoteNode:
    """Receive a build on standard input, and continue as the process of its node.

    Events go to what was standard output; the output of the process goes to its log, on
    standard error. The signals that end a run are blocked in the node. Raises
    PlacerError if the build cannot be received.
    """
    delivery = read_delivery(0)
    build = unpack(delivery)
    os.environ[VARIABLE] = f"/proc/self/fd/{pass_key(RunKey(delivery.secret))}"
    # Until the node can report them, and the first process can pass them on.
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    if pid := os.fork():
        _wait_for(Child(pid))
    os.setsid()
    report_fd, order_fd = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return RemoteNode(build, report_fd, order_fd)


def _wait_for(node: Child) -> NoReturn:
    """Wait for the node, and end as it has ended: with 128 + N if by signal N."""
    for number in END_SIGNALS:
        signal.signal(number, lambda given, _: node.signal(given))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    os.close(1)  # the launcher sees the end of the events when the node has ended
    poll = select.poll()
    poll.register(node.pidfd, select.POLLIN)
    poll.register(0, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported
    poll.poll()
    code = node.end(END_GRACE)
    sys.stderr.flush()
    os._exit(shell_status(-signal.SIGKILL if code is None else code))
