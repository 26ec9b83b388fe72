"""A job on Ray: a placement group, and an actor for each node in its bundle."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from placer.channel.keys import RunKey
from placer.engines.ray_cluster import one_line, resources_of
from placer.engines.ray_files import RayJobDescription
from placer.engines.ray_node import KILL_GRACE, RayNode
from placer.errors import RunError

STOP_TIMEOUT: Final = 10.0
"""Seconds in which the control node gets a signal."""
_CONCURRENCY: Final = 4
"""Methods of an actor that run at the same time: `read` waits while others are called."""


@dataclass(frozen=True, slots=True)
class RayJob:
    """A job on Ray; see `placer.engines.engine.Job`. It ends with this process.

    Attributes:
        title: what the user is told of it.
        ray: the package.
        description: the content of its `job.json`.
        build: the content of each file of the build by its path.
        key: the key of the run.
        group: its placement group.
        connected: whether this process was connected to the cluster for the job.
        actors: the actor of each node by its name, once they exist.
        cancelled: whether it is to end.
    """

    title: str
    ray: Any
    description: RayJobDescription
    build: Mapping[str, bytes]
    key: RunKey
    group: Any
    connected: bool
    actors: dict[str, Any] = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    cancel_command: str = ""

    def make_actors(self) -> bool:
        """Make an actor for each node, which Ray starts in its bundle; return False if
        the job was cancelled."""
        strategies = self.ray.util.scheduling_strategies
        made = self.ray.remote(RayNode)
        with self.lock:
            if self.cancelled.is_set():
                return False
            for i, (node, bundle) in enumerate(self.description.nodes.items()):
                asked = resources_of(bundle)
                options = made.options(
                    num_cpus=asked.get("CPU", 0),
                    num_gpus=asked.get("GPU", 0),
                    memory=asked.get("memory"),
                    max_concurrency=_CONCURRENCY,
                    scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                        self.group, placement_group_bundle_index=i
                    ),
                )
                self.actors[node] = options.remote(node)
        return True

    def stop(self) -> None:
        """Ask the nodes to stop after the same step, and to save: by a signal to the
        control node."""
        for actor in self.actors.values():
            try:
                self.ray.get(actor.stop.remote(), timeout=STOP_TIMEOUT)
            except self.ray.exceptions.RayError as error:
                raise RunError(one_line(error)) from None
            return

    def cancel(self) -> None:
        """End the processes of the nodes, the actors and the placement group."""
        with self.lock:
            if self.cancelled.is_set():
                return
            self.cancelled.set()
        # An actor that has ended, or a cluster that is lost, needs no end.
        with suppress(self.ray.exceptions.RayError, OSError, RuntimeError, ValueError):
            ends = [actor.kill.remote() for actor in self.actors.values()]
            if ends:
                self.ray.wait(ends, num_returns=len(ends), timeout=KILL_GRACE)
            for actor in self.actors.values():
                self.ray.kill(actor)
            self.ray.util.remove_placement_group(self.group)

    def close(self) -> None:
        """Cancel the job, and leave the cluster if this process was there for the job."""
        self.cancel()
        if self.connected:
            self.ray.shutdown()
