"""The actor of a node, which runs on the machine that Ray has chosen.

The actor starts the node as a process. Ray calls its methods in several threads. The
actor keeps the output of the process until the launcher fetches it with `read`; if too
much is kept, the process waits.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import IO, Final

from placer.channel.endpoint import parse_endpoint, show_endpoint
from placer.channel.keys import RunKey, pass_key
from placer.channel.ports import free_ports
from placer.errors import RunError
from placer.launcher.child import Child
from placer.launcher.parent import with_parent
from placer.plan.received_builds import keep_build
from placer.runtime.process.environment import node_environment
from placer.runtime.process.interpreter import interpreter
from placer.runtime.signals.signals import STOP_SIGNAL
from placer.system.owned_threads import OwnedThreads

LEAST_PORT: Final = 20_000
"""The smallest port to use; Ray's workers use lower ones."""
POLL: Final = 5.0
"""Seconds that `read` waits for output."""
COLLECT: Final = 0.05
"""Seconds to wait for more output, so that fewer calls are needed."""
MOST_KEPT: Final = 1 << 20
"""Bytes of events, and of the log, after which the process waits for the launcher."""
KILL_GRACE: Final = 5.0
"""Seconds in which a killed process must end."""
PARENT_POLL: Final = 1.0
"""Seconds between two checks of this process's parent."""


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """The new output of a node's process.

    Attributes:
        lines: new events, without line ends.
        log: new text of the log.
        status: the exit status, -N after signal N; None while the process runs or has
            more output.
    """

    lines: Sequence[bytes]
    log: bytes
    status: int | None


class RayNode:
    """The actor of a node.

    Args:
        node: the name of the node.
        takes_orders: True if the process reads orders: other nodes may move while it runs.
    """

    def __init__(self, node: str, *, takes_orders: bool = False) -> None:
        self._node = node
        self._orders = _open_pipe() if takes_orders else -1
        self._port: socket.socket | None = None
        self._has_begun = False
        self._process: Child | None = None
        self._threads = OwnedThreads()
        self._changed = self._threads.changed
        self._events = bytearray()
        self._log = bytearray()
        self._status: int | None = None
        end = partial(self._end_with_raylet, os.getppid())
        self._threads.begin(end, "placer raylet")

    def _end_with_raylet(self, raylet: int) -> None:
        """End this process after its parent, because a busy worker does not notice that
        end."""
        while os.getppid() == raylet:
            time.sleep(PARENT_POLL)
        self.kill()
        os._exit(1)

    def where(self, before: str = "") -> str:
        """Choose the address of the node, and reserve its port until the node starts.

        Args:
            before: the address of the actor whose place this one takes. It is chosen again
                if the machine is the same and the port is free.

        An actor whose node has begun ends, because the launcher has lost it. Ray starts another
        one.
        """
        if self._has_begun:
            self.kill()
            os._exit(1)
        from ray.util import get_node_ip_address

        host = get_node_ip_address()
        if self._port is None and before:
            self._port = _port_at(before, host)
        if self._port is None:
            self._port = next(free_ports(host, LEAST_PORT), None)
        if self._port is None:
            raise RunError(f"{self._node} finds no free port on {host}")
        return show_endpoint((host, self._port.getsockname()[1]))

    def run(
        self,
        files: Mapping[str, bytes],
        digest: str,
        arguments: Sequence[str],
        secret: bytes,
    ) -> None:
        """Start the process of the node.

        Args:
            files: the content of each file of the build, by path.
            digest: the digest of its plan.
            arguments: the arguments of `placer run` after the build and the node.
            secret: the secret of the run's key.

        Raises:
            BuildError: if the build has another digest.
            PlacerError: if the build cannot be written.
        """
        self._has_begun = True
        build = keep_build(files, digest)
        command = [*interpreter(), "run", str(build), "--node", self._node]
        command += ["--events", "-", *arguments]
        if self._orders >= 0:
            command += ["--order-fd", str(self._orders)]
        started: Future[None] = Future()
        # The process is killed when this thread ends, so the thread waits for the
        # process.
        run = partial(self._run_process, command, RunKey(secret), started)
        self._threads.begin(run, f"placer process of {self._node}")
        started.result()

    def _run_process(
        self, command: Sequence[str], key: RunKey, started: Future[None]
    ) -> None:
        try:
            process = self._process = self._start(command, key)
            started.set_result(None)
        except BaseException as error:
            started.set_exception(error)
            return
        readers = OwnedThreads()
        for pipe, kept in ((process.stdout, self._events), (process.stderr, self._log)):
            keep = partial(self._keep, process, pipe, kept)
            readers.begin(keep, f"placer output of {self._node}")
        status = process.wait()
        readers.join()
        readers.check()
        process.close()
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def _start(self, command: Sequence[str], key: RunKey) -> Child:
        key_fd = pass_key(key)
        try:
            if self._port is not None:
                self._port.close()
            return Child.start(
                with_parent(command),  # Ray blocks SIGINT in this thread.
                node_environment(key_fd),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(key_fd, self._orders) if self._orders >= 0 else (key_fd,),
            )
        finally:
            os.close(key_fd)

    def _keep(self, process: Child, pipe: IO[bytes] | None, kept: bytearray) -> None:
        for data in process.read(pipe):
            with self._changed:
                self._changed.wait_for(lambda: len(kept) < MOST_KEPT)
                kept.extend(data)
                self._changed.notify_all()

    def read(self) -> NodeOutput:
        """Return the new output of the process; wait for output if there is none."""
        with self._changed:
            self._changed.wait_for(self._has_something, POLL)
            self._threads.check()
            is_over = self._status is not None
        if not is_over:
            time.sleep(COLLECT)
        with self._changed:
            status = self._status
            # A process that was killed may have written a part of a line.
            end = self._events.rfind(b"\n") + 1
            lines = bytes(self._events[:end]).splitlines()
            del self._events[:end]
            log = bytes(self._log)
            self._log.clear()
            self._changed.notify_all()
        return NodeOutput(lines, log, status)

    def _has_something(self) -> bool:
        return bool(b"\n" in self._events or self._log or self._status is not None)

    def order(self, order: bytes) -> None:
        """Write an order to the process. If it has not started, it reads the order later."""
        os.write(self._orders, order)

    def stop(self) -> None:
        """Ask the nodes to stop after the same step."""
        if self._process is not None:
            self._process.signal(STOP_SIGNAL)

    def kill(self) -> None:
        """End the process and all processes that it started, and wait for their end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(KILL_GRACE)


def _open_pipe() -> int:
    """Return a descriptor to read and to write the orders of a process. The process holds it as
    well, so it never reads their end: it is killed with this process, and must not tell the
    other nodes before that the run is over."""
    read, write = os.pipe()
    try:
        return os.open(f"/proc/self/fd/{read}", os.O_RDWR)
    finally:
        os.close(read)
        os.close(write)


def _port_at(address: str, host: str) -> socket.socket | None:
    """Return a socket that holds the port of an address, if the address is on the host, and
    the port is free."""
    where = parse_endpoint("Ray", address)
    if where[0] != host:
        return None
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Closed connections of the last process may still have the port.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(where)
    except OSError:
        bound.close()
        return None
    return bound
