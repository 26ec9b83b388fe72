"""The process that runs builds of one node, and times their calls.

It is a process of its own, since JAX and the allocator are set up as in a node.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

import msgspec

from placer.errors import PlacerError
from placer.measuring.timer import Timer
from placer.plan.plan import NodePlan, Plan, read_plan
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import Event
from placer.runtime.control.execution import Execution
from placer.runtime.control.options import Options
from placer.runtime.exchange.devices import configure_jax
from placer.runtime.node.program_file import Hooks, Programs
from placer.runtime.process.nodes import run_node
from placer.system.cores import fix_threads
from placer.system.memory.allocator import keep_memory

EMULATED: Final = "emulated"
"""The name of a device for which a device of the processor stands."""


class TimedBuild(msgspec.Struct, frozen=True):
    """A build to run.

    Attributes:
        folder: the build folder.
        steps: the largest number of steps.
        seconds: after this time it ends early, but not before `MIN_STEPS` steps.
        alternates: whether every other step is only timed as a whole.
        overheads: whether to time the overheads between its steps.
        by_wall: whether to time by wall clock: a program waits while an accelerator works.
    """

    folder: str
    steps: int
    seconds: float
    alternates: bool = False
    overheads: bool = False
    by_wall: bool = False


class Job(msgspec.Struct, frozen=True):
    """What a process runs.

    Attributes:
        builds: the builds, one after another.
        step_bytes: the memory of a step of the spec's largest node, for the allocator.
        device: the kind of device to time copies to; empty for none.
        emulated: whether a device of the processor stands for it.
    """

    builds: tuple[TimedBuild, ...]
    step_bytes: int
    device: str = ""
    emulated: bool = False


class Measured(msgspec.Struct, frozen=True):
    """The CPU times of one build, in nanoseconds.

    Attributes:
        times: the times of each call by its name; see `Timer`.
        plain: the times of whole steps.
        steps: the number of steps that were timed call by call.
        overheads: what was timed between steps: name, size and times.
    """

    times: dict[str, list[int]]
    plain: list[int]
    steps: int
    overheads: list[tuple[str, int, list[int]]]


class Answer(msgspec.Struct, frozen=True):
    """The result of a job.

    Attributes:
        builds: the times of each build.
        devices: the name of each kind of device.
        versions: the versions of the packages that compute.
    """

    builds: list[Measured]
    devices: dict[str, str]
    versions: dict[str, str]


def run_job(job: Job) -> Answer:
    """Run the builds of a job one after another in this process."""
    keep_memory(job.step_bytes)
    fix_threads()
    other = _configure(job)
    by_wall = not job.emulated
    builds = [_run(build, other, by_wall=by_wall) for build in job.builds]
    import jax
    import jaxlib
    import numpy

    versions = {m.__name__: m.__version__ for m in (jax, jaxlib, numpy)}
    names = {}
    if other is not None:
        names[job.device] = EMULATED if job.emulated else other.device_kind
    return Answer(builds, names, versions)


def _configure(job: Job) -> Any:
    """Return the device to time copies to, or None."""
    import jax

    if not job.device:
        return None
    if job.emulated:
        jax.config.update("jax_num_cpu_devices", 2)
        return jax.devices("cpu")[1]
    try:
        return jax.devices(job.device)[0]
    except RuntimeError as error:
        raise PlacerError(
            f"this machine has no {job.device} to measure",
            hint="measure on a machine that has it, or set 'emulate: true' in the spec",
        ) from error


class _TimedPrograms(Programs):
    """Loads programs whose hook `step` is timed."""

    def __init__(self, folder: Path, plan: Plan, timer: Timer) -> None:
        super().__init__(folder, plan)
        self._timer = timer

    def load(self, node: NodePlan) -> Hooks:
        hooks = super().load(node)
        return hooks._replace(step=self._timer.hook(hooks.step))


def _run(build: TimedBuild, other: Any, *, by_wall: bool) -> Measured:
    """Run a build. `by_wall` says that the `other` device is timed by wall clock."""
    from placer.channel.in_process import memory_channels
    from placer.measuring.overheads import Overheads

    folder = Path(build.folder)
    plan = read_plan(folder)
    (node,) = plan.nodes
    channel = memory_channels([node.name])[node.name]
    options = Options(steps=build.steps)
    execution = Execution(plan, folder, node, channel, options, _ignore)
    configure_jax(plan.nodes, plan.settings.emulate, alone=other is None)

    def stop() -> None:
        execution.common_step.request(Action.STOP)

    timer = Timer(build.seconds, stop, alternates=build.alternates)
    timer.clock = perf_counter_ns if build.by_wall else process_time_ns
    overheads: Overheads | None = None

    def between() -> None:
        nonlocal overheads
        overheads = overheads or Overheads(node.tables, other, by_wall=by_wall)
        overheads.run()

    if build.overheads:
        timer.between = between
    try:
        run_node(execution, _TimedPrograms(folder, plan, timer), None)
    finally:
        execution.close()
        channel.close()
    cases = overheads.times if overheads is not None else {}
    found = [(name, size, times) for (name, size), times in cases.items()]
    return Measured(timer.times, timer.plain, timer.timed_steps, found)


def _ignore(event: Event) -> None:
    """Report no event: failures are raised."""
    del event


def main() -> None:
    """Run the job in the file of the first argument; write the answer to the second."""
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    try:
        answer = msgspec.json.encode(run_job(job))
    except PlacerError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    Path(sys.argv[2]).write_bytes(answer)


if __name__ == "__main__":
    main()
