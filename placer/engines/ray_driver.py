"""The driver of a job on Ray: a process of its own, which the launcher starts.

Ray ends its drivers when it has lost the head of its cluster, writes to their standard
output, and takes their signals: all of this is not for the process of the launcher.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.channel.endpoint import parse_endpoint
from placer.engines.ray_cluster import check_fits, connect, import_ray, no_room
from placer.engines.ray_files import RayJobDescription, read_build
from placer.engines.ray_messages import (
    STOP,
    Ended,
    Failed,
    Lines,
    Log,
    Message,
    Note,
    Submitted,
    write_message,
)
from placer.engines.ray_nodes import RayNodes
from placer.errors import PlacerError, RunError

POLL: Final = 1.0
"""Seconds between two checks for limits of time."""
QUIET: Final = 3.0
"""Seconds that a job waits for machines before it says so."""
EXIT_GRACE: Final = 20.0
"""Seconds in which a job ends that is to end."""


def main(folder: Path) -> None:
    """Run the job in a folder. Messages go to what was standard output, and all else to
    standard error."""
    fd = os.dup(1)
    os.dup2(2, 1)
    job = msgspec.json.decode(_read_line(), type=RayJobDescription)

    ending = threading.Event()

    def tell(message: Message) -> None:
        if not ending.is_set():
            write_message(fd, message)

    try:
        _run(job, folder, tell, ending)
    except PlacerError as error:
        tell(Failed(error.message, error.hint))
        raise SystemExit(1) from None


def _run(
    job: RayJobDescription,
    folder: Path,
    tell: Callable[[Message], None],
    ending: threading.Event,
) -> None:
    files = read_build(folder, job.digest)
    ray = import_ray()
    connect(ray, job.address)
    if not job.grows:
        check_fits(ray, job)
    nodes = RayNodes(ray, job)
    try:
        tell(Submitted(f"Ray job {ray.get_runtime_context().get_job_id()}"))
        threading.Thread(target=_obey, args=(nodes, ending), daemon=True).start()
        driver = _Driver(ray, job, nodes, tell)
        driver.wait_for_machines()
        nodes.make_actors()
        addresses: dict[str, str] = driver.call_all(nodes.where())
        hosts = {
            node: parse_endpoint(node, address)[0]
            for node, address in addresses.items()
        }
        tell(Note(f"{len(hosts)} nodes run on {', '.join(sorted({*hosts.values()}))}"))
        driver.call_all(nodes.run(files, addresses))
        last = driver.follow(hosts)
        nodes.end()
        tell(last)  # nothing is left when the launcher ends
    finally:
        nodes.end()
        ray.shutdown()


def _obey(nodes: RayNodes, ending: threading.Event) -> None:
    """Obey the orders on standard input; end the job at its end."""
    while line := _read_line():
        if line == STOP:
            nodes.stop()
    ending.set()  # the launcher is to hear of the end when nothing is left
    threading.Timer(EXIT_GRACE, os._exit, [1]).start()
    nodes.end()
    os._exit(0)  # Ray may wait for something that nobody needs any more


def _read_line() -> bytes:
    """Read a line of standard input, empty at its end. A thread that waits in `sys.stdin`
    would be in the way of the end of the process."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


class _Driver:
    """What follows a job.

    Args:
        ray: the package.
        job: the job.
        nodes: its nodes.
        tell: called with each message.
    """

    def __init__(
        self,
        ray: Any,
        job: RayJobDescription,
        nodes: RayNodes,
        tell: Callable[[Message], None],
    ) -> None:
        self._ray, self._job, self._nodes, self._tell = ray, job, nodes, tell
        self._begin = time.monotonic()

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._begin > self._job.timeout

    def wait_for_machines(self) -> None:
        """Wait until there is the placement group."""
        is_said = False
        while not self._nodes.group.wait(POLL):
            if self._is_late:
                raise no_room(self._ray, self._job)
            if not is_said and time.monotonic() - self._begin > QUIET:
                is_said = True
                self._tell(Note(f"waits at most {self._job.timeout} s for machines"))

    def call_all(self, calls: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a call of each node returns, by its name."""
        left = {ref: node for node, ref in calls.items()}
        results = {}
        while left:
            for ref in self._ray.wait([*left], timeout=POLL)[0]:
                node = left.pop(ref)
                results[node] = self._get(ref, node)
            if left and self._is_late:
                raise RunError(
                    f"Ray has not started {', '.join(left.values())} within"
                    f" {self._job.timeout} s"
                )
        return {node: results[node] for node in calls}

    def _get(self, ref: Any, what: str) -> Any:
        """Return the result of a call. Raises RunError if it has failed."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"{what}: {error.cause}") from None
        except self._ray.exceptions.RayError as error:
            hint = None
            if "No module named 'placer" in str(error):
                hint = "install placer for the Python of Ray on all machines"
            raise RunError(f"{what}: {reason(error)}", hint=hint) from None

    def follow(self, hosts: Mapping[str, str]) -> Ended:
        """Tell what the nodes write, and how they end; return the last end."""
        actors = self._nodes.actors
        reads = {actor.read.remote(): node for node, actor in actors.items()}
        while True:
            for ref in self._ray.wait([*reads], timeout=POLL)[0]:
                node = reads.pop(ref)
                end = self._take(ref, node, hosts[node])
                if end is None:
                    reads[actors[node].read.remote()] = node
                elif reads:
                    self._tell(end)
                else:
                    return end

    def _take(self, ref: Any, node: str, host: str) -> Ended | None:
        """Tell what a node has written; return its end if it has ended."""
        try:
            output = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return Ended(node, None, reason(error), host)
        if output.lines:
            self._tell(Lines(node, output.lines))
        if output.log:
            self._tell(Log(node, output.log))
        if output.status is None:
            return None
        return Ended(node, output.status, "", host)


def reason(error: BaseException) -> str:
    """Return why an actor has died, as one line, from what Ray says at length."""
    text = " ".join(str(error).split())
    cause = re.search(r"The actor (?:is dead|died) because (.*?)\.(?: |$)", text)
    detail = re.search(r"exit detail: (.*?)(?:\. Some common|\.?$)", text)
    parts = [found[1] for found in (cause, detail) if found]
    return f"Ray says: {': '.join(parts) or text[:400]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
