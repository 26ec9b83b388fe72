"""Collects the facts about a new run for its file `command.json`."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import placer
from placer.plan.plan import MODEL, Plan, read_sources
from placer.plan.settings.evaluation_and_stopping import Best
from placer.plan.settings_by_key import settings_by_key
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
        settings=settings_of(build, plan),
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


def settings_of(build: Path, plan: Plan) -> dict[str, Any]:
    """Return the settings of a build that can be compared with those of other runs."""
    return {
        **settings_by_key(plan),
        MODEL_DIGEST: _model_digest(build, plan),
        GRAPH_DIGEST: plan.files["graph.txt"][:8],
    }


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
    # `placer launch` has no such values, and needs no compiler.
    from placer.compiler.frontend.yaml.scalars import resolve

    value = resolve(text)
    return text if value is None else value


def _model_digest(build: Path, plan: Plan) -> str:
    """Return a digest of the parameters of a model, and of its ops if it can predict."""
    parts = [
        f"{p.name} {p.dtype} {p.shape} {p.init} {p.trainable}" for p in plan.parameters
    ]
    if plan.outputs:
        # The first line names the build, its nodes and its batch.
        parts += (build / MODEL).read_text().splitlines()[1:]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
