"""Lets a run go on with fewer nodes (`--elastic`).

When a node does not come back, the launcher compiles the spec again for the nodes that are
left, and starts all of them anew. They continue from the last checkpoint of the run. The
batch is global, so that the mathematics stays the same.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from placer.errors import PlacerError, RunError, SpecWarning
from placer.launcher.absent import NodesLost
from placer.launcher.engine_job import OnEngine
from placer.launcher.hosts import SPARE
from placer.launcher.remote import Hosts
from placer.launcher.restarts import Restarts
from placer.launcher.supervise import Watch
from placer.place.ids import format_nodes
from placer.place.node_kinds import SERVER, WORKER, NodeId
from placer.plan.plan import OF_RUN, Plan, Sources
from placer.plan.write import write_build
from placer.runtime.control.events import FewerNodes
from placer.runtime.control.options import Options
from placer.runtime.control.result import Outcome

if TYPE_CHECKING:
    # Only for types: launching a build does not need the compiler.
    from placer.compiler.driver import CompiledBuild

LaunchBuild = Callable[
    [Path, Plan, Hosts | OnEngine | None, Restarts | None, str], Outcome
]
"""Runs the nodes of a build on machines. With the restarts of the nodes of another build, it
continues these, and the last argument is a sentence about the new nodes."""
_NAMES: Final = {WORKER: "workers", SERVER: "servers"}


@dataclass(slots=True)
class Elastic:
    """The counts with which a run may go on, and its present build.

    Attributes:
        least: the smallest number of processes of each kind; other kinds keep their number.
        build: the present build.
        plan: its plan.
        digest: the digest of the first build.
        spec: the spec, as the argument of `placer.compile`.
        sources: what else is needed to compile the spec.
        folder: returns the folder of the run, where new builds are kept.
    """

    least: Mapping[str, int]
    build: Path
    plan: Plan
    digest: str
    spec: str
    sources: Sources
    folder: Callable[[], Path | None]

    def shrink(self, lost: Collection[str], place: Path) -> None:
        """Replace the build by one for the largest number of the nodes that are left.

        Args:
            lost: the processes that are given up.
            place: the folder for the new build if the run has no folder.

        Raises:
            PlacerError: if no build with enough nodes is possible.
        """
        before = counts_of(self.plan)
        left = before - Counter(NodeId(node).kind for node in lost)
        for kind, number in before.items():
            if left[kind] < (least := self.least.get(kind, number)):
                names = name_of(kind)
                text = (
                    f"{left[kind]} of {number} {names} are left, and it needs {least}"
                )
                raise PlacerError(text)
        self.check_unchanged()
        compiled = self._compile_largest(left)
        build = _new_folder(self.folder() or place)
        write_build(build, compiled.files_in(build))
        self.build, self.plan = build, compiled.plan

    def _compile_largest(self, left: Mapping[str, int]) -> CompiledBuild:
        """Compile the largest number of the processes that are left: first of workers, then of
        servers. Raises the first error if none can be compiled."""
        present = counts_of(self.plan)
        kinds = sorted(present, key=lambda kind: [WORKER, SERVER, kind].index(kind))
        workers, *others = (
            range(left[kind], self.least.get(kind, present[kind]) - 1, -1)
            for kind in kinds
        )
        first: PlacerError | None = None
        for number in workers:
            texts: set[str] = set()
            for numbers in product([number], *others):
                try:
                    return self.compile(dict(zip(kinds, numbers, strict=True)))
                except PlacerError as error:
                    first = first or error
                    if str(error) in texts:  # a batch that the workers cannot divide
                        break
                    texts.add(str(error))
        assert first is not None, "`shrink` has found enough processes"
        raise first

    def compile(self, counts: Mapping[str, int]) -> CompiledBuild:
        """Compile the spec for a number of nodes of each kind; by default, for the number of
        the first build. Raises the errors of `placer.compile`."""
        from placer.compiler.driver import compile_in_memory

        arguments = self.sources.arguments
        assert arguments is not None, "`check_elastic` refuses such a build"
        nodes = {**arguments.nodes, **counts}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpecWarning)  # the user has seen them
            return compile_in_memory(
                self.spec,
                nodes=nodes or None,
                overrides=self.sources.overrides,
                outputs=arguments.outputs,
                code=arguments.code,
                publish=arguments.publish,
            )

    def check_unchanged(self) -> CompiledBuild:
        """Return the first build, compiled again. Raises PlacerError if the spec does not give
        it any more."""
        compiled = self.compile({})
        if compiled.plan.digest != self.digest:
            raise PlacerError(f"'{self.spec}' has changed since it was compiled")
        return compiled


def counts_of(plan: Plan) -> Counter[str]:
    """Return the number of processes of each kind of node."""
    return Counter(NodeId(process).kind for process in plan.processes)


def name_of(kind: str) -> str:
    """Return the noun for nodes of a kind."""
    return _NAMES.get(kind, f"{kind} nodes")


def _new_folder(run: Path) -> Path:
    """Return the first free folder `build-2`, `build-3` and so on in the folder of a run."""
    folders = (run / f"{OF_RUN}-{number}" for number in count(2))
    return next(folder for folder in folders if not folder.exists())


def hosts_left(
    plan: Plan, addresses: Mapping[str, str], lost: Collection[str]
) -> dict[str, str]:
    """Return the address of each process of a smaller build: the processes of each kind keep
    the addresses that are left, in order.

    Args:
        plan: the plan of the smaller build.
        addresses: the address of each process of the earlier build.
        lost: the processes of the earlier build that are given up.
    """
    left: dict[str, Iterator[str]] = {}
    for kind in counts_of(plan):
        left[kind] = iter(
            [
                address
                for node, address in addresses.items()
                if NodeId(node).kind == kind and node not in lost
            ]
        )
    return {process: next(left[NodeId(process).kind]) for process in plan.processes}


def write_hosts(
    file: Path, addresses: Mapping[str, str], spares: Sequence[str]
) -> None:
    """Write a hosts file with the address of each process, and the spare machines."""
    kinds: dict[str, list[str]] = {}
    for node, address in addresses.items():
        kinds.setdefault(NodeId(node).kind, []).append(address)
    if spares:
        kinds[SPARE] = [*spares]
    file.write_text(yaml.safe_dump(kinds))


def run_elastic(
    elastic: Elastic,
    options: Options,
    machines: Hosts | OnEngine | None,
    logs: Path,
    watch: Watch,
    launch: LaunchBuild,
) -> Outcome:
    """Run the nodes of a build, and go on with fewer when some do not come back.

    Args:
        elastic: the build, and the smallest number of nodes.
        options: the options of the run.
        machines: the machines of the nodes; None for this machine.
        logs: the folder for new builds of a run without a folder.
        watch: called with a FewerNodes event.
        launch: runs the nodes of a build.

    Raises:
        RunError: as of `launch`; also if not enough nodes are left.
    """
    restarts, fewer = None, ""
    with tempfile.TemporaryDirectory(prefix="placer-hosts-") as folder:
        while True:
            before = elastic.plan
            try:
                return launch(elastic.build, before, machines, restarts, fewer)
            except NodesLost as error:
                lost = error
            try:
                elastic.shrink(lost.nodes, logs)
            except PlacerError as why:
                text = f"{lost.message}\n  the run cannot go on with fewer nodes: {why}"
                raise RunError(text) from lost
            restarts = lost.restarts
            fewer = _sentence(before, elastic.plan)
            if isinstance(machines, Hosts):
                assert restarts.machines is not None
                placed = restarts.machines
                left = hosts_left(elastic.plan, placed.addresses, lost.nodes)
                file = Path(folder) / f"{elastic.build.name}.yaml"
                write_hosts(file, left, placed.spares)
                machines = replace(machines, file=file)
            watch(_event(elastic, before, lost, fewer))


def _changed(before: Plan, after: Plan) -> list[tuple[str, int, int]]:
    """Return the name, and the numbers before and now, of each kind with fewer nodes."""
    now = counts_of(after)
    return [
        (name_of(kind), number, now[kind])
        for kind, number in counts_of(before).items()
        if now[kind] != number
    ]


def _sentence(before: Plan, after: Plan) -> str:
    parts = [f"{now} of {was} {name}" for name, was, now in _changed(before, after)]
    return f"the run goes on with {' and '.join(parts)}"


def _reasons(lost: NodesLost) -> Iterator[str]:
    """Yield which nodes are given up for each reason, such as "has failed"."""
    nodes: dict[str, list[str]] = {}
    for node, why in lost.nodes.items():
        nodes.setdefault(why, []).append(node)
    for why, names in nodes.items():
        have = why if len(names) == 1 else f"have{why.removeprefix('has')}"
        yield f"{format_nodes(names).replace(', ', ' and ')} {have}"


def _event(elastic: Elastic, before: Plan, lost: NodesLost, fewer: str) -> FewerNodes:
    """Return the event that a run goes on with fewer nodes than `before`."""
    saved = lost.restarts.saved
    after = f" after step {saved:,}" if saved else " from its beginning"
    changed = _changed(before, elastic.plan)
    full = " and ".join(f"{was} {name}" for name, was, _ in changed)
    return FewerNodes(
        f"{'; '.join(_reasons(lost))}: {fewer}{after}; results differ from those of {full}"
        " by rounding",
        str(elastic.build.resolve()),
        {node.name: node.program for node in elastic.plan.nodes},
    )
