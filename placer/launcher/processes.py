"""Runs the nodes of a build as processes, on this machine or over ssh on others."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from placer.channel.keys import find_key, new_key, pass_key
from placer.channel.ports import free_endpoints
from placer.errors import PlacerError, RunError
from placer.launcher.absent import Absent
from placer.launcher.elastic import Elastic, run_elastic
from placer.launcher.engine_job import OnEngine, followed_job
from placer.launcher.forked_process import ForkError, ForkServer
from placer.launcher.forks import can_fork, cannot_fork, open_fork_server
from placer.launcher.logs import LogFolder, log_path
from placer.launcher.node_command import node_command
from placer.launcher.node_process import NodeProcess, start_node
from placer.launcher.remote import Hosts, RemoteNodes, remote_nodes
from placer.launcher.restarts import Restarts, StartAgain
from placer.launcher.supervise import Watch, supervise
from placer.launcher.watched_node import StartNode, WatchedNode
from placer.place.node_kinds import NodeId
from placer.plan.plan import Plan
from placer.runtime.callbacks.callbacks import CallbackQueue
from placer.runtime.control.checkpoint_settings import checkpoint_settings
from placer.runtime.control.events import CheckpointSaved, Event, NodeWarning
from placer.runtime.control.options import Options
from placer.runtime.control.result import Outcome, Result
from placer.runtime.prediction.request import PredictionRequest
from placer.runtime.process.environment import node_environment
from placer.runtime.saving.start_choice import choose_start
from placer.runtime.signals.interruption import Interruption
from placer.runtime.signals.signals import catch_signals
from placer.system.descriptors import is_readable

AnyEvent = TypeVar("AnyEvent", bound=Event)


def run_processes(
    build: Path,
    plan: Plan,
    options: Options,
    logs: LogFolder,
    watch: Watch,
    interruption: Interruption,
    *,
    prediction: PredictionRequest | None = None,
    calls: CallbackQueue | None = None,
    machines: Hosts | OnEngine | None = None,
    elastic: Elastic | None = None,
) -> Outcome:
    """Run the nodes of a build as processes, to train or to predict. They run on
    `machines`, by default on this machine. With `elastic`, the run may go on with fewer
    nodes."""
    paced = calls is not None and calls.has_callbacks
    with ExitStack() as exits:
        if isinstance(machines, OnEngine):
            result = _run_job(
                build, plan, options, logs, watch, interruption, calls, machines
            )
        else:
            options, keeps = exits.enter_context(
                _with_checkpoints(build, plan, options, logs)
            )
            if machines is None:
                options = choose_start(options, watch)
            run_id = secrets.token_hex(8) if options.restarts else ""
            wait = options.join_timeout if elastic is not None else None
            followed = watch if keeps else partial(_watch_removed, watch)

            def launch(
                build: Path,
                plan: Plan,
                machines: Hosts | OnEngine | None,
                earlier: Restarts | None = None,
                fewer: str = "",
            ) -> Outcome:
                """Run the nodes of a build, which may continue the run of another one."""
                start: StartNode
                with ExitStack() as exits:
                    remote: RemoteNodes | None = None
                    if isinstance(machines, Hosts):
                        remote = remote_nodes(
                            build, plan, options, machines, run_id=run_id, paced=paced
                        )
                        exits.enter_context(remote.machines.checks)
                        start = remote.start
                    else:
                        starter = _local_starter(
                            build,
                            plan,
                            options,
                            paced,
                            prediction,
                            watch,
                            interruption,
                            run_id,
                        )
                        start = exits.enter_context(starter)
                    restarts = partial(
                        _restarts, plan, options, remote=remote, wait=wait
                    )
                    if earlier is not None:
                        start = partial(start, attempt=earlier.next_attempt)
                        control = NodeId(plan.control).process
                        restarts = partial(
                            earlier.continue_with,
                            control,
                            fewer,
                            machines=None if remote is None else remote.machines,
                        )
                    return launch_nodes(
                        [*plan.processes],
                        start,
                        logs.folder,
                        followed,
                        interruption,
                        calls,
                        restarts if options.restarts else None,
                    )

            if elastic is None:
                result = launch(build, plan, machines)
            else:
                result = run_elastic(
                    elastic, options, machines, logs.folder, watch, launch
                )
            if not keeps:
                result = _without_best(result)
    logs.failed = result.failed_late
    return result


@contextmanager
def _with_checkpoints(
    build: Path, plan: Plan, options: Options, logs: LogFolder
) -> Iterator[tuple[Options, bool]]:
    """Yield options with a folder of checkpoints if the run has `--restarts`, and whether
    the folder is kept. A new folder is next to the logs, and is removed after a success."""
    if not options.restarts or checkpoint_settings(plan, build, options) is not None:
        yield options, True
        return
    _make_folder(logs.folder)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=logs.folder))
    yield replace(options, checkpoint=folder), False
    shutil.rmtree(folder, ignore_errors=True)


def _watch_removed(watch: Watch, event: Event) -> None:
    """Pass on an event of a run whose checkpoints are removed after a success."""
    watch(_without_best(event))


def _without_best(event: AnyEvent) -> AnyEvent:
    """Return an event or a result that names no best checkpoint."""
    match event:
        case Result():
            return structs.replace(event, best=None)
        case CheckpointSaved():
            return structs.replace(event, best=False)
    return event


def _run_job(
    build: Path,
    plan: Plan,
    options: Options,
    logs: LogFolder,
    watch: Watch,
    interruption: Interruption,
    calls: CallbackQueue | None,
    on: OnEngine,
) -> Outcome:
    _make_folder(logs.folder)
    with (
        catch_signals() as signals,
        followed_job(build, plan, options, logs, on) as followed,
    ):
        if followed.goes_on:
            logs.outlive_launcher()
        queue = calls if calls is not None else CallbackQueue(())
        restarts = _restarts(plan, options, None) if options.restarts else None
        try:
            return supervise(
                followed.nodes, watch, signals, interruption, queue, restarts
            )
        finally:
            if followed.remains:
                watch(NodeWarning(followed.remains))


FORKS_END = 10.0
"""Seconds in which forks must end after their server has ended."""


class ForksEnded(Exception):  # noqa: N818 - an event, not an error
    """A node cannot be started because the server has ended with all earlier forks."""


@contextmanager
def _local_starter(
    build: Path,
    plan: Plan,
    options: Options,
    paced: bool,
    prediction: PredictionRequest | None,
    watch: Watch,
    interruption: Interruption,
    run_id: str,
) -> Iterator[StartNode]:
    if options.base_port is None:
        endpoints = free_endpoints([*plan.processes])
    else:
        from placer.runtime.process.entry_point import default_endpoints

        endpoints = default_endpoints(plan, options.base_port)
    command = partial(
        node_command,
        build,
        endpoints=endpoints,
        # The endpoints already contain the ports.
        options=replace(options, base_port=None),
        paced=paced,
        prediction=prediction,
        run_id=run_id,
    )
    key_fd = pass_key(find_key(options.key) or new_key())
    environment = node_environment(key_fd)

    with ExitStack() as exits:
        exits.callback(os.close, key_fd)
        server: ForkServer | None = None
        has_forks = False
        if can_fork(plan, options):
            commands = [command(node) for node in plan.processes]
            opened = open_fork_server(
                plan,
                commands,
                environment,
                watch,
                interruption,
                starts_again=options.restarts > 0,
            )
            server = exits.enter_context(opened)

        def start(
            node: str, log: Path, is_control: bool, *, attempt: int | None = None
        ) -> NodeProcess:
            nonlocal server, has_forks
            start_it = partial(
                start_node,
                node,
                command(node, attempt=attempt or 0),
                log,
                environment,
                takes_orders=is_control,
                inherited=(key_fd,),
                again=attempt is not None,
            )
            try:
                started = start_it(server=server)
            except ForkError as error:
                watch(cannot_fork(error))
                server = None
                if error.has_ended and has_forks and attempt is None:
                    raise ForksEnded from error
                return start_it()
            has_forks = server is not None
            return started

        yield start


def launch_nodes(
    nodes: Sequence[str],
    start: StartNode,
    logs: Path,
    watch: Watch,
    interruption: Interruption,
    calls: CallbackQueue | None = None,
    restarts: Callable[[StartAgain], Restarts] | None = None,
) -> Outcome:
    """Start a process for each node, and watch the processes until all have ended.

    Raises the errors of `launch`.

    Args:
        nodes: the names of the nodes; the first is the control node.
        start: starts a process that writes the events of `placer.runtime.control.events`.
        logs: the folder for the logs.
        watch: called with each event.
        interruption: decides how the run reacts to signals.
        calls: the queue of steps for callbacks.
        restarts: returns the restarts of the run, given a function that starts a process
            again; None if the first failure ends the run.
    """
    if not hasattr(os, "pidfd_open"):
        raise RunError(
            "nodes can run as processes only on Linux", hint="use --in-process"
        )
    _make_folder(logs)

    def start_again(child: WatchedNode, attempt: int) -> WatchedNode:
        is_control = child.node == nodes[0]
        started = start(child.node, child.log, is_control, attempt=attempt)
        child.close()
        return started

    with catch_signals() as signals, _started(nodes, start, logs) as children:
        return supervise(
            children,
            watch,
            signals,
            interruption,
            calls if calls is not None else CallbackQueue(()),
            None if restarts is None else restarts(start_again),
        )


def _restarts(
    plan: Plan,
    options: Options,
    start: StartAgain | None,
    *,
    remote: RemoteNodes | None = None,
    wait: float | None = None,
) -> Restarts:
    return Restarts(
        options.restarts,
        NodeId(plan.control).process,
        start,
        options.lost_after,
        compares=plan.is_repeatable,
        machines=None if remote is None else remote.machines,
        absent=Absent(wait),
        longest_pause=options.join_timeout / 2,
    )


@contextmanager
def _started(
    nodes: Sequence[str], start: StartNode, logs: Path
) -> Iterator[list[WatchedNode]]:
    """Start the nodes; if the fork server ends meanwhile, start them again without forks."""
    with ExitStack() as exits:
        children = _start_all(nodes, start, logs, exits)
        if children is None:
            children = _start_all(nodes, start, logs, exits)
        assert children is not None, "forks without a server"
        yield children


def _start_all(
    nodes: Sequence[str], start: StartNode, logs: Path, exits: ExitStack
) -> list[WatchedNode] | None:
    """Start the nodes, to be closed with `exits`; None if the fork server has ended."""
    children: list[WatchedNode] = []
    with ExitStack() as closing:
        try:
            for node in nodes:
                child = start(node, log_path(logs, node), not children)
                closing.callback(_close, children, len(children))
                children.append(child)
        except ForksEnded:
            for child in children:
                # The new processes will use the same addresses.
                is_readable(child.pidfd, FORKS_END)
            return None
        exits.push(closing.pop_all())
    return children


def _close(children: Sequence[WatchedNode], index: int) -> None:
    """Close a process, or the one that has taken its place."""
    children[index].close()


def _make_folder(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlacerError(
            f"cannot create the log folder '{logs}': {error.strerror}"
        ) from error
