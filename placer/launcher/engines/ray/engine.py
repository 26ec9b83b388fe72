"""Ray: a placement group, and an actor for each node, which starts the node's process.

`submit` starts the driver of the job (`placer.launcher.engines.ray.driver`). The driver
creates the actors in Ray's workers, sends them the build and the key, and fetches their
output. The job ends with the driver, and the driver with the launcher. See `docs/how-to/ray.md`
for its use.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.errors import PlacerError, RunError, install_extra
from placer.launcher.child import Child
from placer.launcher.engines.engine import EngineOption, JobEvent, JobFiles, JobRequest
from placer.launcher.engines.ray.files import describe_job, job_files
from placer.launcher.engines.ray.messages import (
    STOP,
    Failed,
    Message,
    event_of,
    read_message,
)
from placer.launcher.engines.said import end_of_file, quoting
from placer.runtime.process.environment import python_environment
from placer.runtime.process.interpreter import interpreter
from placer.runtime.signals.signals import how_ended

OPTIONS: Final = (
    EngineOption(
        "address",
        "str",
        "auto",
        "The address of the cluster, HOST:PORT. auto uses RAY_ADDRESS, or the "
        "cluster of this machine.",
    ),
    EngineOption(
        "cpus", "int", 1, "The number of CPUs that Ray reserves for each node."
    ),
    EngineOption(
        "memory",
        "size",
        None,
        "The memory of each node, such as 8GiB. Default: the needs of the plan.",
    ),
    EngineOption(
        "strategy",
        "str",
        "PACK",
        "The placement strategy of Ray: PACK uses few machines, SPREAD many; "
        "STRICT_PACK uses one machine, STRICT_SPREAD a machine for each node.",
        ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
    ),
    EngineOption(
        "timeout",
        "int",
        300,
        "The seconds within which the nodes must get their machines.",
    ),
    EngineOption(
        "grows",
        "bool",
        False,
        "Wait for machines that an autoscaler may add to the cluster.",
    ),
)
RESTARTS: Final = True
LOG: Final = "ray.log"
"""The file for the output of Ray."""
END_GRACE: Final = 30.0
"""Seconds in which a cancelled job must end."""


@dataclass(frozen=True, slots=True)
class RayJob:
    """A job on Ray; see `placer.launcher.engines.engine.Job`.

    Attributes:
        driver: the process that follows the job. The job ends with the driver, and the
            driver with this process.
        log: the file for the output of Ray.
        title: the name of the job for the user.
        cancel_command: always empty: the job ends with this process.
        folder: always None: the launcher writes the logs.
    """

    driver: Child
    log: Path
    title: str = "the Ray job"
    cancel_command: str = ""
    folder: Path | None = None

    def stop(self) -> None:
        self.order(STOP)

    def cancel(self) -> None:
        assert self.driver.stdin is not None
        with suppress(BrokenPipeError):
            self.driver.stdin.close()
        self.driver.end(END_GRACE)  # If the driver is killed, Ray ends its actors.

    def close(self) -> None:
        """End the job, and wait for its end."""
        self.cancel()
        self.driver.close()

    def order(self, line: bytes) -> None:
        """Write a line to the driver, if it still runs."""
        assert self.driver.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            # ValueError: the pipe is closed after a cancellation.
            self.driver.stdin.write(line)
            self.driver.stdin.flush()

    def read(self) -> Message | None:
        """Return the next message of the driver, or None at the end."""
        assert self.driver.stdout is not None
        return read_message(self.driver.stdout.fileno())

    def failure(self, message: Message | None) -> RunError:
        """Return the error in the last message of the driver. Without a message (None),
        the error says how the driver ended."""
        if isinstance(message, Failed):
            return RunError(message.message, hint=message.hint)
        status = self.driver.end(END_GRACE)
        how = "has not ended" if status is None else how_ended(status)
        told = quoting(f"the driver of the Ray job {how}", end_of_file(self.log))
        return RunError(told, hint=f"see the output of Ray in {self.log}")


def write(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    """Return the files of a job; see `Engine.write`."""
    for name in ("cpus", "timeout"):
        if options[name] < 1:
            raise PlacerError(f"ray: '{name}' must be at least 1")
    if not options["address"].strip():
        raise PlacerError("ray: 'address' is empty")
    return job_files(request, options)


def submit(folder: Path, request: JobRequest, options: Mapping[str, Any]) -> RayJob:
    """Start the driver of the job in a folder; see `Engine.submit`. The driver connects
    to the cluster later, during `watch`, so that a signal can end the attempt."""
    if find_spec("ray") is None:
        raise PlacerError(
            "Ray is not installed on this machine",
            hint=f"{install_extra('ray')}; install the version of Ray that the "
            "cluster has",
        )
    log = folder / LOG
    with log.open("wb") as output:
        driver = Child.start(
            [*interpreter("placer.launcher.engines.ray.driver"), str(folder.resolve())],
            python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            # Ray's workers would import modules from the user's working folder.
            folder="/",
            # The driver ends on its own when its input ends.
            left=True,
        )
    job = RayJob(driver, log)
    job.order(msgspec.json.encode(describe_job(request, options)) + b"\n")
    return job


def watch(job: RayJob) -> Iterator[JobEvent]:
    """Yield the events that the driver reports; see `Engine.watch`."""
    try:
        while message := job.read():
            if isinstance(message, Failed):
                raise job.failure(message)
            yield event_of(message)
        if job.driver.end(END_GRACE):
            raise job.failure(None)
    finally:
        job.close()
