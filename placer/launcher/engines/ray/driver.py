"""The driver of a job on Ray, in a separate process that the launcher starts.

Ray ends its driver when it has lost the head of its cluster. It also writes to the
driver's standard output and handles its signals. The launcher's process must be safe from
all this.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import ray
import ray.exceptions

from placer.errors import PlacerError, RunError, install_extra
from placer.launcher.engines.ray.cluster import Head, connect, explain
from placer.launcher.engines.ray.files import RayJobDescription, read_build
from placer.launcher.engines.ray.follower import Follower
from placer.launcher.engines.ray.messages import (
    STOP,
    Failed,
    Message,
    Note,
    write_message,
)
from placer.launcher.engines.ray.nodes import RayNodes
from placer.launcher.engines.ray.room import check_fits, no_room
from placer.launcher.engines.said import in_one_line, quoting
from placer.launcher.other_python import hint_without_placer
from placer.system.owned_threads import OwnedThreads

POLL: Final = 1.0
"""Seconds between two checks for time limits."""
QUIET: Final = 3.0
"""Seconds that a job waits for machines before the user is told."""
EXIT_GRACE: Final = 20.0
"""Seconds in which a job must end once it is told to."""
_PLACER_HINT: Final = (
    f"{install_extra('ray')}, in the Python of Ray on every machine of the cluster"
)


def main(folder: Path) -> None:
    """Run the job in a folder; the first line of standard input describes the job.
    Messages go to the original standard output, all other output to standard error."""
    fd = os.dup(1)
    os.dup2(2, 1)
    job = msgspec.json.decode(_read_line(), type=RayJobDescription)
    orders = _Orders()
    threads = OwnedThreads()

    def tell(message: Message) -> None:
        threads.check()
        if not orders.have_ended.is_set():
            write_message(fd, message)

    threads.begin(partial(orders.obey, tell), "placer orders")
    try:
        _run(job, folder, tell, orders)
    except PlacerError as error:
        tell(Failed(error.message, error.hint))
        raise SystemExit(1) from None


def _run(
    job: RayJobDescription,
    folder: Path,
    tell: Callable[[Message], None],
    orders: _Orders,
) -> None:
    files = read_build(folder, job.digest)

    def give_up(error: PlacerError) -> None:
        tell(Failed(error.message, error.hint))
        os._exit(1)

    connect(ray, job.address, give_up)
    context = ray.get_runtime_context()
    head = Head(context.gcs_address)
    if not job.grows:
        check_fits(ray, job)
    nodes = orders.nodes = RayNodes(job)
    try:
        driver = _Start(job, nodes, head, tell)
        driver.wait_for_machines()
        nodes.make_actors(files)
        nodes.addresses = driver.call_all(nodes.where)
        where = ", ".join(sorted({*map(nodes.host, nodes.actors)}))
        tell(
            Note(
                f"Ray job {context.get_job_id()} of the cluster {head.address}:"
                f" {len(nodes.actors)} nodes run on {where}"
            )
        )
        driver.call_all(nodes.run)
        last = Follower(job, nodes, head, tell).follow()
        nodes.end()
        # The launcher may end after this message, so nothing else may still run.
        tell(last)
    except ConnectionError as error:  # Ray Client raises it when its server has ended.
        message = "the connection to the Ray cluster was lost"
        raise RunError(quoting(message, str(error))) from None
    finally:
        nodes.end()
        ray.shutdown()


class _Orders:
    """The orders that the launcher writes to standard input.

    Attributes:
        nodes: the nodes of the job, once they exist.
        have_ended: True if the job must end, because standard input has ended.
    """

    def __init__(self) -> None:
        self.nodes: RayNodes | None = None
        self.have_ended = threading.Event()

    def obey(self, tell: Callable[[Message], None]) -> None:
        """Obey the orders, and end this process after the last one."""
        while line := _read_line():
            if line == STOP and self.nodes is not None:
                try:
                    self.nodes.stop()
                except Exception as error:  # Ray Client can raise any exception.
                    tell(
                        Note(f"the nodes cannot be stopped: {in_one_line(str(error))}")
                    )
        # The launcher learns of the end only when nothing is left running.
        self.have_ended.set()
        timer = threading.Timer(EXIT_GRACE, os._exit, [1])
        timer.name = "placer exit"
        timer.start()
        if self.nodes is not None:
            self.nodes.end()
        os._exit(0)  # Do not wait for threads of Ray, which can block.


def _read_line() -> bytes:
    """Return the next line of standard input without `sys.stdin`, which can block the
    exit."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


class _Start:
    """Starts the nodes of a job, and passes its messages to `tell`."""

    def __init__(
        self,
        job: RayJobDescription,
        nodes: RayNodes,
        head: Head,
        tell: Callable[[Message], None],
    ) -> None:
        self._job, self._nodes, self._head, self._tell = job, nodes, head, tell
        self._begin = time.monotonic()

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._begin > self._job.timeout

    def wait_for_machines(self) -> None:
        is_said = False
        while not self._nodes.group.wait(POLL):
            if self._is_late:
                raise no_room(ray, self._job)
            if not is_said and time.monotonic() - self._begin > QUIET:
                is_said = True
                self._tell(Note(f"waits at most {self._job.timeout} s for machines"))

    def call_all(self, call: Callable[[str], Any]) -> dict[str, Any]:
        """Call the actors of all nodes, and return their results by the names of the nodes."""
        left = {call(node): node for node in self._nodes.actors}
        results = {}
        while left:
            for ref in ray.wait([*left], timeout=POLL)[0]:
                node = left.pop(ref)
                results[node] = self._get(ref, node)
            if left and self._is_late:
                raise RunError(
                    f"Ray has not started {', '.join(left.values())} within"
                    f" {self._job.timeout} s"
                )
        return {node: results[node] for node in self._nodes.actors}

    def _get(self, ref: Any, what: str) -> Any:
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            hint = hint_without_placer(str(error.cause), _PLACER_HINT)
            raise RunError(f"{what}: {error.cause}", hint=hint) from None
        except ray.exceptions.RayError as error:
            hint = hint_without_placer(str(error), _PLACER_HINT)
            message = quoting(f"{what}: Ray says", explain(error, self._head))
            raise RunError(message, hint=hint) from None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
