"""Decides if the nodes of a run are forks of one process, and lists its imports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from placer.launcher.forked_process import ForkError, ForkServer
from placer.launcher.supervise import Watch
from placer.plan.plan import Plan
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.options import Options
from placer.runtime.process.gpus import count_gpus
from placer.runtime.signals.interruption import Interruption
from placer.runtime.signals.signals import catch_signals

FORKS: Final = "PLACER_FORK"
"""The environment variable that turns forks off if it is 0."""
_IMPORTS: Final = (
    # Named here, because this package must not import `placer.command`.
    "placer.command.run",
    "placer.launcher.checks",
    "placer.launcher.data_check",
    "placer.report.outcome",
    "placer.runtime.process.entry_point",
    "placer.ops",
    "jax.numpy",
)
"""Modules that every node imports."""
_UPDATES: Final = (
    "placer.tables.compiled_kernels",
    "placer.tables.machine_code",
    "scipy.linalg",  # numba searches this module for LAPACK.
    "placer.system.caches.started_numba",
)
"""More modules that nodes with tables import."""
_MANY: Final = 3
"""The smallest number of processes for which a fork server pays off. Two processes make
their imports in parallel on two cores and share little."""
_ADDED: Final = 64
"""Bytes for arguments that are added to a command line when a node is started."""
_MOST: Final = 100_000
"""The largest command line that can be shown, in bytes. Linux limits a word to 128 KiB."""


def can_fork(plan: Plan, options: Options) -> bool:
    """Return True if the processes of a run on this machine are forks of one process.
    The run must have many processes, or start processes again, and must not use GPUs: it is
    not known which GPU libraries survive a fork. The environment can turn forks off."""
    if os.environ.get(FORKS) == "0" or os.environ.get("PYTHONHASHSEED") == "random":
        return False
    if len(plan.processes) < _MANY and not options.restarts:
        return False
    if options.emulate or plan.settings.emulate:
        return True
    return not any(count_gpus(nodes) for nodes in plan.processes.values())


@contextmanager
def open_fork_server(
    plan: Plan,
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    watch: Watch,
    interruption: Interruption,
    *,
    starts_again: bool = False,
) -> Iterator[ForkServer | None]:
    """Yield a server that has made the imports of the nodes of a plan. Yield None,
    after a warning, if no process can be forked. A signal during the imports ends the
    run. If the run starts nodes again, the server makes all of their imports."""
    longest = max(sum(len(os.fsencode(word)) + 1 for word in each) for each in commands)
    room = min(longest + _ADDED, _MOST)
    with ExitStack() as exits, catch_signals() as signals:
        server: ForkServer | None = None
        try:
            server = ForkServer(environment, _imports(plan, starts_again), room)
            exits.enter_context(server)
            with signals.raised_from(1):
                server.wait_until_ready()
        except KeyboardInterrupt:
            if not signals.received:
                raise
        except ForkError as error:
            watch(cannot_fork(error))
            server = None
        signals.raise_first(interruption.outcome(None))
        opened = exits.pop_all()
    with opened:
        yield server


def cannot_fork(error: ForkError) -> NodeWarning:
    """Return the warning that each node makes its imports itself."""
    return NodeWarning(f"each node makes its imports itself: the fork server {error}")


def _imports(plan: Plan, starts_again: bool) -> tuple[str, ...]:
    """Return the modules that all nodes import, and those that many of them import. A node
    that is started again saves the time for all of its imports."""
    updating = [
        nodes for nodes in plan.processes.values() if any(n.tables for n in nodes)
    ]
    least = 1 if starts_again else _MANY
    return _IMPORTS if len(updating) < least else (*_IMPORTS, *_UPDATES)
