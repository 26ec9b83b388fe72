"""Collects the facts about a new run for its file `command.json`."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

import placer
from placer.compiler.frontend.yaml.scalars import resolve
from placer.place.node_kinds import NodeId
from placer.plan.plan import MODEL, Plan, Table, read_sources
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.evaluation_and_stopping import Best
from placer.plan.settings.sparse.sparse_keys import written_keys
from placer.plan.settings.training.optimizers import OPTAX
from placer.plan.settings.training.update_modes import SYNC, Mode
from placer.report.run_files import GRAPH_DIGEST, MODEL_DIGEST, Command
from placer.runtime.control.checkpoint_settings import (
    best_evaluation,
    checkpoint_settings,
)
from placer.runtime.control.options import OPTIONS, Options
from placer.system.cores import usable_cores

if TYPE_CHECKING:
    from placer.compiler.frontend.python.overrides import Overrides

_PACKAGES: Final = ("jax", "jaxlib", "numpy")
_SECRET: Final = "key"


def command_of(
    build: Path,
    plan: Plan,
    options: Options,
    *,
    overrides: Overrides | None = None,
    command: str = "",
) -> Command:
    """Return the facts about a run that starts now.

    Args:
        build: the build folder.
        plan: the plan of the build.
        options: the options of the run.
        overrides: the values of `--set`.
        command: the command line. Default: that of this process.
    """
    settings, best = checkpoint_settings(plan, build, options), best_evaluation(plan)
    changed = ((o.name, getattr(options, o.name), o.default) for o in OPTIONS)
    return Command(
        name=plan.name,
        command=command or shlex.join(sys.orig_argv),
        started=time.time(),
        spec=str((build / read_sources(build).spec).resolve()),
        set=dict(_set_values(overrides)),
        settings={
            **_settings(plan),
            MODEL_DIGEST: _model_digest(build, plan),
            GRAPH_DIGEST: plan.files["graph.txt"][:8],
        },
        options={
            name: str(value) if isinstance(value, Path) else value
            for name, value, default in changed
            if value != default and name != _SECRET
        },
        versions={
            "placer": placer.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
        machine={
            "name": platform.node(),
            "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
            "cores": usable_cores(),
        },
        build=str(build.resolve()),
        checkpoints=str(settings.folder.resolve()) if settings is not None else None,
        monitor=Best(best.metric, best.mode) if best is not None else None,
    )


def _set_values(overrides: Overrides | None) -> Iterator[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            yield str(key), value if isinstance(value, int | float) else str(value)
        return
    for text in overrides or ():
        key, _, value = text.partition("=")
        yield key, _number(value)


def _number(text: str) -> Any:
    """Return a value of `--set` as a number if it is one, otherwise as text."""
    value = resolve(text)
    return text if value is None else value


def _settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of a plan, with the keys of a spec."""
    data = {"train": plan.train, "eval": plan.evaluation}
    kinds = Counter(NodeId(node.name).kind for node in plan.nodes)
    tree = {
        **msgspec.to_builtins(plan.settings),
        "data": {
            n: _source(source) for n, source in data.items() if source is not None
        },
        "nodes": kinds,
    }
    return {
        **dict(_flatten(tree)),
        **_one_level("optimizer", _optimizers(plan)),
        **_one_level("graph", _sparse_ops(plan)),
    }


def _source(source: RowSource) -> dict[str, Any]:
    """Return the settings of a source of rows, with the defaults."""
    settings = msgspec.structs.asdict(source)
    del settings["ranges"]  # The ranges follow from the model.
    return {key: msgspec.to_builtins(value) for key, value in settings.items()}


def _optimizers(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the settings of the optimizer of each table, by name."""
    tables = [table for node in plan.nodes for table in node.tables]
    # With `geo`, the optimizer of a spec runs on the workers, on tables of their own.
    of_worker = {
        block.parameter: table
        for table in tables
        if table.local
        for block in table.blocks
    }
    found = {}
    for table in tables:
        if table.rule is None or table.local:
            continue
        trained = next(
            (of_worker[b.parameter] for b in table.blocks if b.parameter in of_worker),
            table,
        )
        found[table.name] = {
            "op": trained.rule,
            "learning_rate": msgspec.to_builtins(trained.learning_rate),
            "update": _update(table.mode),
            **msgspec.to_builtins(trained.hyper),
            **_optax_functions(plan, trained),
        }
    for sparse in plan.sparse_tables:
        if sparse.trainable:
            found[sparse.name] = {
                "op": sparse.settings.rule,
                "learning_rate": msgspec.to_builtins(sparse.learning_rate),
                "update": _update(sparse.mode),
                **msgspec.to_builtins(sparse.settings.hyper),
            }
    return found


def _optax_functions(plan: Plan, table: Table) -> dict[str, Any]:
    """Return the functions of an optax optimizer, with the keys of a spec."""
    if table.rule != OPTAX:
        return {}
    transformation = plan.transformations[table.transformation]
    return {
        "fn": transformation.fn,
        "with": json.loads(transformation.config or "null"),
        "eval_params": transformation.eval_params or None,
    }


def _sparse_ops(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the settings of each sparse table, by the name of its op."""
    return {
        table.name.removesuffix(".table"): {
            **written_keys(table.settings),
            "init": table.settings.init,
            "trainable": table.trainable,
            "dtype": table.dtype,
            "rows": table.rows,
        }
        for table in plan.sparse_tables
    }


def _update(mode: Mode | None) -> Any:
    """Return an update mode as in a spec, such as `async` or `{geo: {every: 10}}`."""
    if mode is None:
        return SYNC
    settings = msgspec.to_builtins(mode)
    name = settings.pop("type")
    return {name: settings} if settings else name


def _one_level(section: str, tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of tables with keys such as `optimizer.dense.op`, without None."""
    return {
        f"{section}.{name}.{key}": value
        for name, settings in tables.items()
        for key, value in settings.items()
        if value is not None
    }


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the values of nested dicts with their dotted keys, without None."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _model_digest(build: Path, plan: Plan) -> str:
    """Return a digest of the parameters of a model, and of its ops if it can predict."""
    parts = [
        f"{p.name} {p.dtype} {p.shape} {p.init} {p.trainable}" for p in plan.parameters
    ]
    if plan.outputs:
        # The first line names the build, its nodes and its batch.
        parts += (build / MODEL).read_text().splitlines()[1:]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
