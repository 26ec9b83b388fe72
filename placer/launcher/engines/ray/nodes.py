"""The placement group of a job, and the actors of its nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import ray
import ray.exceptions
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from placer.launcher.engines.ray.files import RayJobDescription, resources_of
from placer.launcher.engines.ray.node import KILL_GRACE, RayNode

_CONCURRENCY: Final = 4
"""The number of methods that an actor can run at the same time, because `read` waits."""


class RayNodes:
    """The actors of a job, in the bundles of a placement group.

    Args:
        job: the job.

    Attributes:
        group: the placement group, which exists once Ray has the resources.
        actors: the actor of each node by its name, once they exist.
    """

    def __init__(self, job: RayJobDescription) -> None:
        self._job = job
        self.actors: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._have_ended = False
        self.group = ray.util.placement_group(
            [resources_of(bundle) for bundle in job.nodes.values()],
            strategy=job.strategy,
            name=job.name,
        )

    def make_actors(self) -> None:
        """Create an actor for each node, which Ray starts in its bundle."""
        made = ray.remote(RayNode)
        with self._lock:
            if self._have_ended:
                return
            for i, (node, bundle) in enumerate(self._job.nodes.items()):
                asked = resources_of(bundle)
                options = made.options(
                    num_cpus=asked.get("CPU", 0),
                    num_gpus=asked.get("GPU", 0),
                    memory=asked.get("memory"),
                    max_concurrency=_CONCURRENCY,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self.group, placement_group_bundle_index=i
                    ),
                )
                self.actors[node] = options.remote(node)

    def where(self) -> dict[str, Any]:
        """Request the address of each node; return references of Ray."""
        return {node: actor.where.remote() for node, actor in self.actors.items()}

    def run(
        self, files: Mapping[str, bytes], endpoints: Mapping[str, str]
    ) -> dict[str, Any]:
        """Start the process of each node; return references of Ray. `files` maps paths to
        the content of the build, `endpoints` maps nodes to addresses."""
        listed = ",".join(f"{name}={address}" for name, address in endpoints.items())
        arguments = ["--endpoints", listed, *self._job.arguments]
        build = ray.put({**files})  # Ray sends the build only once to each machine.
        return {
            node: actor.run.remote(build, self._job.digest, arguments, self._job.secret)
            for node, actor in self.actors.items()
        }

    def stop(self) -> None:
        """Ask the nodes to stop after the same step, by a signal to the control node."""
        with self._lock:
            for actor in self.actors.values():
                actor.stop.remote()
                return

    def end(self) -> None:
        """End the nodes' processes, the actors and the placement group; wait for the
        processes."""
        with self._lock:
            if self._have_ended:
                return
            self._have_ended = True
            # Each call can fail alone: an actor has ended, or Ray Client has no
            # connection and raises Exception.
            ends = []
            for actor in self.actors.values():
                with suppress(Exception):
                    ends.append(actor.kill.remote())
            if ends:
                with suppress(Exception):
                    ray.wait(ends, num_returns=len(ends), timeout=KILL_GRACE)
            for actor in self.actors.values():
                with suppress(Exception):
                    ray.kill(actor)
            with suppress(Exception):
                ray.util.remove_placement_group(self.group)
