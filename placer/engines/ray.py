"""Ray: a placement group, and an actor for each node, which starts its process.

The actors run in Ray's workers, which need placer. They get the build and the key from
this process, and it fetches what the nodes write. The job ends with this process: its
actors are not detached. `docs/ray.md` says how to use it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from placer.channel.endpoint import parse_endpoint
from placer.engines.engine import (
    EngineOption,
    JobEvent,
    JobFiles,
    JobNote,
    JobRequest,
    NodeEnded,
    NodeLines,
    NodeLog,
)
from placer.engines.ray_cluster import (
    check_fits,
    connect,
    import_ray,
    no_room,
    one_line,
    resources_of,
)
from placer.engines.ray_files import Bundle, RayJobDescription, job_files, read_job
from placer.engines.ray_job import RayJob
from placer.errors import PlacerError, RunError

OPTIONS: Final = (
    EngineOption(
        "address",
        "str",
        "auto",
        "The address of the cluster, HOST:PORT; auto is RAY_ADDRESS, or the cluster of "
        "this machine.",
    ),
    EngineOption("cpus", "int", 1, "The CPUs that Ray reserves for each node."),
    EngineOption(
        "strategy",
        "str",
        "PACK",
        "How Ray chooses machines: few of them (PACK) or many (SPREAD); the STRICT "
        "ones are just one, or one for each node.",
        ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
    ),
    EngineOption(
        "timeout", "int", 300, "The seconds in which the nodes must get their machines."
    ),
    EngineOption(
        "grows",
        "bool",
        False,
        "Whether the cluster may get more machines, as with an autoscaler.",
    ),
)
POLL: Final = 1.0
"""Seconds between two checks for a job that was cancelled, which makes no event."""
QUIET: Final = 3.0
"""Seconds that a job waits before it says so."""


def write(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    """Return the files of a job; see `Engine.write`."""
    for name in ("cpus", "timeout"):
        if options[name] < 1:
            raise PlacerError(f"ray: '{name}' must be at least 1")
    job = RayJobDescription(
        name=request.name,
        digest=request.plan.digest,
        address=options["address"],
        strategy=options["strategy"],
        timeout=options["timeout"],
        grows=options["grows"],
        nodes={
            node: Bundle(options["cpus"], needs.gpus, needs.memory)
            for node, needs in request.needs.items()
        },
        arguments=[*request.arguments],
        data=None if request.data is None else str(request.data),
        saves=request.saves,
        grace=request.grace,
    )
    return job_files(job, {**request.files})


def submit(folder: Path, request: JobRequest, options: Mapping[str, Any]) -> RayJob:
    """Reserve a placement group for the job in a folder; see `Engine.submit`.

    What to run is in the folder, whose files may have been edited: of `request` only the
    key is used.
    """
    job, build = read_job(folder)
    ray = import_ray()
    connected = connect(ray, job.address)
    try:
        if not job.grows:
            check_fits(ray, job)
        group = ray.util.placement_group(
            [resources_of(bundle) for bundle in job.nodes.values()],
            strategy=job.strategy,
            name=job.name,
        )
        title = f"Ray job {ray.get_runtime_context().get_job_id()}"
    except (PlacerError, OSError, RuntimeError, ValueError) as error:
        if connected:
            ray.shutdown()
        if isinstance(error, PlacerError):
            raise
        raise RunError(f"Ray has refused the job: {one_line(error)}") from None
    return RayJob(title, ray, job, build, request.key, group, connected)


def watch(job: RayJob) -> Iterator[JobEvent]:
    """Start the nodes of a job once it has its machines, and follow them; see
    `Engine.watch`."""
    last = None
    try:
        until = time.monotonic() + job.description.timeout
        yield from _wait_for_machines(job, until)
        if job.make_actors():
            addresses = _start(job, until)
            hosts = {
                node: parse_endpoint(node, address)[0]
                for node, address in addresses.items()
            }
            count, where = len(hosts), sorted({*hosts.values()})
            yield JobNote(f"{count} nodes run on {', '.join(where)}")
            last = yield from _follow(job, hosts)
    finally:
        job.close()
    # Whoever watches may end the process after the last event.
    if last is not None:
        yield last


def _wait_for_machines(job: RayJob, until: float) -> Iterator[JobNote]:
    ready, begin, is_said = job.group.ready(), time.monotonic(), False
    while not job.cancelled.is_set():
        if job.ray.wait([ready], timeout=POLL)[0]:
            _get(job, ready, "the placement group")
            return
        now = time.monotonic()
        if now > until:
            raise no_room(job.ray, job.description)
        if now - begin > QUIET and not is_said:
            is_said = True
            yield JobNote(
                f"{job.title} waits for machines, at most {job.description.timeout} s"
            )


def _start(job: RayJob, until: float) -> dict[str, str]:
    """Start the process of each node, and return their addresses."""
    addresses = _call_all(
        job, {node: actor.where.remote() for node, actor in job.actors.items()}, until
    )
    listed = ",".join(f"{name}={address}" for name, address in addresses.items())
    arguments = ["--endpoints", listed, *job.description.arguments]
    if job.description.data is not None:
        arguments += ["--data", job.description.data]
    build = job.ray.put(job.build)
    digest, secret = job.description.digest, job.key.secret
    runs = {
        node: actor.run.remote(build, digest, arguments, secret)
        for node, actor in job.actors.items()
    }
    _call_all(job, runs, until)
    return addresses


def _call_all(job: RayJob, calls: Mapping[str, Any], until: float) -> dict[str, Any]:
    """Return what a call of each node returns, by the order of the nodes."""
    left = {ref: node for node, ref in calls.items()}
    results = {}
    while left:
        for ref in job.ray.wait([*left], timeout=POLL)[0]:
            node = left.pop(ref)
            results[node] = _get(job, ref, node)
        if left and time.monotonic() > until:
            raise RunError(
                f"{', '.join(left.values())}: Ray has started no worker within"
                f" {job.description.timeout} s"
            )
    return {node: results[node] for node in calls}


def _get(job: RayJob, ref: Any, what: str) -> Any:
    """Return the result of a call that has ended. Raises RunError if it has failed."""
    try:
        return job.ray.get(ref)
    except PlacerError as error:  # Ray raises what is also a RayTaskError
        cause = getattr(error, "cause", error)
        raise RunError(f"{what}: {cause}") from None
    except job.ray.exceptions.RayError as error:
        hint = None
        if "No module named 'placer" in str(error):
            hint = "install placer for the Python of Ray on all machines of the cluster"
        raise RunError(f"{what}: {reason(error)}", hint=hint) from None


def _follow(
    job: RayJob, hosts: Mapping[str, str]
) -> Generator[JobEvent, None, NodeEnded]:
    """Yield what the nodes write and how they end; return the last end."""
    reads = {actor.read.remote(): node for node, actor in job.actors.items()}
    while True:
        for ref in job.ray.wait([*reads], timeout=POLL)[0]:
            node = reads.pop(ref)
            try:
                output = job.ray.get(ref)
            except job.ray.exceptions.RayError as error:
                end = NodeEnded(node, None, reason(error), hosts[node])
            else:
                if output.lines:
                    yield NodeLines(node, output.lines)
                if output.log:
                    yield NodeLog(node, output.log)
                if output.status is None:
                    reads[job.actors[node].read.remote()] = node
                    continue
                end = NodeEnded(node, output.status, host=hosts[node])
            if not reads:
                return end
            yield end


def reason(error: BaseException) -> str:
    """Return why an actor has died, as one line."""
    return one_line(error)
