"""The placement group of a job, and the actors of its nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import ray
import ray.exceptions
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from placer.channel.endpoint import parse_endpoint
from placer.launcher.engines.ray.files import RayJobDescription, resources_of
from placer.launcher.engines.ray.node import KILL_GRACE, RayNode
from placer.runtime.control.launcher_orders import address_order

_CONCURRENCY: Final = 4
"""The number of methods that an actor can run at the same time, because `read` waits."""


class RayNodes:
    """The actors of a job, in the bundles of a placement group.

    Args:
        job: the job.

    Attributes:
        group: the placement group, which exists once Ray has the resources.
        actors: the actor of each node by its name, once they exist.
        addresses: the address of each node by its name, once they are known.
        moved: the nodes whose addresses have changed since.
    """

    def __init__(self, job: RayJobDescription) -> None:
        self._job = job
        self.actors: dict[str, Any] = {}
        self.addresses: dict[str, str] = {}
        self.moved: set[str] = set()
        self._build: Any = None
        self._lock = threading.Lock()
        self._have_ended = False
        self.group = ray.util.placement_group(
            [resources_of(bundle) for bundle in job.nodes.values()],
            strategy=job.strategy,
            name=job.name,
        )

    def make_actors(self, files: Mapping[str, bytes]) -> None:
        """Create an actor for each node, which Ray starts in its bundle. `files` maps paths
        to the content of the build."""
        made = ray.remote(RayNode)
        with self._lock:
            if self._have_ended:
                return
            # Ray sends the build only once to each machine.
            self._build = ray.put({**files})
            for i, (node, bundle) in enumerate(self._job.nodes.items()):
                asked = resources_of(bundle)
                options = made.options(
                    num_cpus=asked.get("CPU", 0),
                    num_gpus=asked.get("GPU", 0),
                    memory=asked.get("memory"),
                    max_concurrency=_CONCURRENCY,
                    # Without a limit: the driver counts the restarts in a row.
                    max_restarts=-1 if self._job.restarts else 0,
                    max_task_retries=0,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self.group, placement_group_bundle_index=i
                    ),
                )
                takes_orders = self._job.restarts > 0
                self.actors[node] = options.remote(node, takes_orders=takes_orders)

    def host(self, node: str) -> str:
        """Return the machine of a node."""
        return parse_endpoint(node, self.addresses[node])[0]

    def where(self, node: str) -> Any:
        """Request the address of a node; return a reference of Ray."""
        return self.actors[node].where.remote(self.addresses.get(node, ""))

    def tell_moves(self, node: str) -> None:
        """Tell the process of a node the new addresses of other nodes. If its actor is lost,
        the call fails, and the next process learns them at its start."""
        orders = [
            address_order(each, self.addresses[each])
            for each in sorted(self.moved - {node})
        ]
        if orders:
            self.actors[node].order.remote(b"".join(orders))

    def run(self, node: str) -> Any:
        """Start the process of a node; return a reference of Ray."""
        listed = ",".join(f"{name}={at}" for name, at in self.addresses.items())
        arguments = ["--endpoints", listed, *self._job.arguments]
        return self.actors[node].run.remote(
            self._build, self._job.digest, arguments, self._job.secret
        )

    def restart(self, node: str) -> None:
        """Let Ray kill the actor of a node, and start another one, as the options of the
        actor allow."""
        ray.kill(self.actors[node], no_restart=False)

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
