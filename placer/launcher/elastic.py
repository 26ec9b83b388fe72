"""Lets a run go on with fewer nodes (`--elastic`).

When a node does not come back, the launcher compiles the spec again for the nodes that are
left, and starts all of them anew. They continue from the last checkpoint of the run. The
batch is global, so that the mathematics stays the same.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from placer.errors import PlacerError, RunError, SpecWarning, did_you_mean
from placer.launcher.absent import NodesLost
from placer.launcher.engine_job import OnEngine
from placer.launcher.remote import Hosts, remote_endpoints
from placer.launcher.restarts import Restarts
from placer.launcher.supervise import Watch
from placer.ops.normalization.batch_norm import REPLICA_NORM
from placer.place.ids import format_nodes
from placer.place.node_kinds import SERVER, WORKER, NodeId
from placer.plan.plan import OF_RUN, Plan, Sources, read_sources
from placer.plan.write import write_build
from placer.runtime.control.events import FewerNodes
from placer.runtime.control.options import Options
from placer.runtime.control.result import Outcome

if TYPE_CHECKING:
    # Only for types: launching a build does not need the compiler.
    from placer.compiler.driver import CompiledBuild

Least = Mapping[str, int] | str
"""The smallest number of nodes of each kind, also as text such as `worker=2,ps=1`."""
LaunchBuild = Callable[
    [Path, Plan, Hosts | OnEngine | None, Restarts | None, str], Outcome
]
"""Runs the nodes of a build on machines. With the restarts of the nodes of another build, it
continues these, and the last argument is a sentence about the new nodes."""
_NAMES: Final = {WORKER: "workers", SERVER: "servers"}


def read_least(given: Least) -> dict[str, int]:
    """Return the smallest number of nodes of each kind. Raises PlacerError for another text or
    another value.

    >>> read_least("worker=2,ps=1")
    {'worker': 2, 'ps': 1}
    """
    pairs: dict[str, int] = {}
    if isinstance(given, str):
        for part in given.split(","):
            kind, _, digits = part.partition("=")
            if not re.fullmatch(r"\w+=[0-9]{1,7}", part):
                raise PlacerError(
                    f"'elastic' (--elastic): '{part}' is not KIND=N, as in worker=2,ps=1"
                )
            if kind in pairs:
                raise PlacerError(f"'elastic' (--elastic): '{kind}' is repeated")
            pairs[kind] = int(digits)
    elif isinstance(given, Mapping):
        pairs = dict(given)
    else:
        raise PlacerError(
            f"'elastic' must be a dict or a text, not {given!r}",
            hint='write elastic={"worker": 2, "ps": 1}',
        )
    for kind, number in pairs.items():
        if not isinstance(number, int) or number is True or number < 1:
            raise PlacerError(
                f"'elastic' (--elastic): the number of nodes of kind '{kind}' must be a"
                f" whole number from 1, not {number!r}"
            )
    if not pairs:
        raise PlacerError("'elastic' is empty", hint='write elastic={"worker": 2}')
    return pairs


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
        kinds = sorted(before, key=lambda kind: [WORKER, SERVER, kind].index(kind))
        ranges = [
            range(left[kind], self.least.get(kind, before[kind]) - 1, -1)
            for kind in kinds
        ]
        why: PlacerError | None = None
        for numbers in product(*ranges):
            try:
                compiled = self.compile(dict(zip(kinds, numbers, strict=True)))
            except PlacerError as error:  # for example a batch that cannot be divided
                why = why or error
                continue
            build = _new_folder(self.folder() or place)
            write_build(build, compiled.files_in(build))
            self.build, self.plan = build, compiled.plan
            return
        raise PlacerError(f"no smaller number of nodes can be compiled: {why}")

    def compile(self, counts: Mapping[str, int]) -> CompiledBuild:
        """Compile the spec for a number of nodes of each kind; by default, for the number of
        the first build. Raises the errors of `placer.compile`."""
        from placer.compiler.driver import compile_in_memory

        arguments = self.sources.arguments
        assert arguments is not None, "`elastic_run` refuses such a build"
        nodes = {**arguments.nodes, **counts}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpecWarning)  # the user has seen them
            return compile_in_memory(
                self.spec,
                nodes=nodes or None,
                overrides=self.sources.overrides,
                outputs=arguments.outputs,
                code=arguments.code,
            )

    def check_unchanged(self) -> CompiledBuild:
        """Return the first build, compiled again. Raises PlacerError if the spec does not give
        it any more."""
        compiled = self.compile({})
        if compiled.plan.digest != self.digest:
            raise PlacerError(f"'{self.spec}' has changed since it was compiled")
        return compiled


def elastic_run(
    build: Path,
    plan: Plan,
    options: Options,
    given: Least | None,
    *,
    machines: Hosts | OnEngine | None,
    in_process: bool,
    folder: Callable[[], Path | None],
) -> Elastic | None:
    """Check `--elastic` before a run; return None without it.

    The spec is compiled twice: for the present number of nodes, which must give the present
    build, and for the smallest.

    Args:
        build: the build folder.
        plan: its plan.
        options: the options of the run.
        given: the smallest number of nodes of each kind.
        machines: the machines of the nodes; None for this machine.
        in_process: whether the nodes are threads of this process.
        folder: returns the folder of the run.

    Raises:
        PlacerError: if the run could not go on with fewer nodes.
    """
    if given is None:
        return None
    least = read_least(given)
    if in_process:
        raise _error("cannot be used with in-process nodes, which run as threads")
    if isinstance(machines, OnEngine):
        raise _error(
            f"cannot be used with {machines.name}",
            "continue the run as a smaller job, with --resume",
        )
    if not options.restarts:
        raise _error("needs 'restarts' (--restarts N)", "add --restarts 3")
    _check_counts(plan, least)
    sources = read_sources(build)
    if sources.arguments is None:
        raise _no_arguments_error(build, sources)
    spec = os.path.normpath(build.resolve() / sources.spec)
    if function := sources.arguments.function:
        spec += f":{function}"
    elastic = Elastic(least, build, plan, plan.digest, spec, sources, folder)
    with _explained(f"needs the spec of '{build}'", "compile the spec again"):
        compiled = elastic.check_unchanged()
    _check_rounding(plan, compiled.files["graph.txt"].decode())
    counts = ",".join(f"{kind}={number}" for kind, number in least.items())
    with _explained(f"cannot go down to {counts}", "choose larger numbers"):
        elastic.compile(least)
    return elastic


@contextmanager
def _explained(text: str, hint: str) -> Iterator[None]:
    """Add a text and a hint to an error."""
    try:
        yield
    except PlacerError as error:
        raise _error(f"{text}: {error}", hint) from error


def _error(text: str, hint: str | None = None) -> PlacerError:
    return PlacerError(f"'elastic' (--elastic) {text}", hint=hint)


def _check_counts(plan: Plan, least: Mapping[str, int]) -> None:
    """Raise PlacerError if the smallest numbers do not fit a build."""
    present = counts_of(plan)
    for kind, number in least.items():
        if kind not in present:
            raise _error(
                f"names nodes of kind '{kind}', but the build has none",
                did_you_mean(kind, present),
            )
        if number > present[kind]:
            raise _error(
                f"needs at least {number} {name_of(kind)}, but the build has"
                f" {present[kind]}",
                "the numbers are the smallest with which the run may go on",
            )
    if all(number == present[kind] for kind, number in least.items()):
        raise _error(
            "has no effect: the build has as many nodes as the run needs at least",
            "name smaller numbers, or remove the option",
        )


def _check_rounding(plan: Plan, graphs: str) -> None:
    """Raise PlacerError if the number of nodes changes results by more than rounding.

    Args:
        plan: the plan of a build.
        graphs: the text of its graphs.
    """
    from placer.compiler.graph.text import parse_graphs

    ops = [op for graph in parse_graphs(graphs) for op in graph.ops]
    tables = [table for node in plan.nodes for table in node.tables]
    modes = [table.mode for table in tables]
    modes += [table.mode for table in plan.sparse_tables]
    why = ""
    if any(mode is not None for mode in modes):
        why = "asynchronous and local updates depend on the number of workers"
    elif plan.has_backup:
        why = "backup workers depend on the number of workers"
    elif plan.parts:
        why = (
            f"'{next(iter(plan.parts))}' computes each batch in parts (batch: replica)"
        )
    elif any(op.kind == REPLICA_NORM.kind for op in ops):
        why = "a batch_norm normalizes each worker's own rows (scope: replica)"
    if why:
        raise _error(
            f"needs synchronous training, whose results only differ by rounding: {why}",
            "remove the option, and continue a failed run with --resume",
        )


def _no_arguments_error(build: Path, sources: Sources) -> PlacerError:
    text = f"needs to compile the spec again, but '{build}' does not record how"
    if sources.spec.endswith(".py"):
        return _error(
            text,
            "compile FILE.py:FUNCTION, with a function that returns the program",
        )
    return _error(text, "compile the spec again")


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


def write_hosts(file: Path, addresses: Mapping[str, str]) -> None:
    """Write a hosts file with the address of each process."""
    kinds: dict[str, list[str]] = {}
    for node, address in addresses.items():
        kinds.setdefault(NodeId(node).kind, []).append(address)
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
                addresses = remote_endpoints(before, options, machines)
                file = Path(folder) / f"{elastic.build.name}.yaml"
                write_hosts(file, hosts_left(elastic.plan, addresses, lost.nodes))
                machines = replace(machines, file=file)
            watch(_event(elastic, before, lost, fewer))


def _sentence(before: Plan, after: Plan) -> str:
    now = counts_of(after)
    parts = [
        f"{now[kind]} of {number} {name_of(kind)}"
        for kind, number in counts_of(before).items()
        if now[kind] != number
    ]
    return f"the run goes on with {' and '.join(parts)}"


def _event(elastic: Elastic, before: Plan, lost: NodesLost, fewer: str) -> FewerNodes:
    by_reason: dict[str, list[str]] = {}
    for node, why in lost.nodes.items():
        by_reason.setdefault(why, []).append(node)
    reasons = "; ".join(
        f"{format_nodes(nodes).replace(', ', ' and ')} {why if len(nodes) == 1 else 'have' + why[3:]}"
        for why, nodes in by_reason.items()
    )
    saved = lost.restarts.saved
    after = f" after step {saved:,}" if saved else " from its beginning"
    now, full = counts_of(elastic.plan), counts_of(before)
    all_nodes = " and ".join(
        f"{number} {name_of(kind)}"
        for kind, number in full.items()
        if now[kind] != number
    )
    return FewerNodes(
        f"{reasons}: {fewer}{after}; results differ from those of {all_nodes} by"
        " rounding",
        str(elastic.build.resolve()),
        {node.name: node.program for node in elastic.plan.nodes},
    )
