"""Checks before a run with `--elastic` that it could go on with fewer nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from placer.errors import PlacerError, did_you_mean
from placer.launcher.elastic import Elastic, counts_of, name_of
from placer.launcher.engine_job import OnEngine
from placer.launcher.remote import Hosts
from placer.plan.plan import Plan, Sources, read_sources
from placer.runtime.control.options import Options

Least = Mapping[str, int] | str
"""The smallest number of nodes of each kind, also as text such as `worker=2,ps=1`."""


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


def check_elastic(
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
    from placer.ops.normalization.batch_norm import REPLICA_NORM

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
