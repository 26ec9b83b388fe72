"""placer: one model, place strings on its ops, one readable JAX program per node.

import placer

result = placer.train("specs/digits.yaml")
print(result.eval["accuracy"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placer import layers as layers
    from placer import optimizer as optimizer
    from placer.compiler.driver import compile as compile
    from placer.compiler.frontend.python.program import Program as Program
    from placer.compiler.frontend.python.program import (
        default_program as default_program,
    )
    from placer.compiler.frontend.python.remat import remat as remat
    from placer.compiler.frontend.python.trace import trace as trace
    from placer.compiler.frontend.python.training import (
        append_backward as append_backward,
    )
    from placer.compiler.frontend.python.variable import Variable as Variable
    from placer.errors import BuildError as BuildError
    from placer.errors import CheckpointError as CheckpointError
    from placer.errors import CheckpointWarning as CheckpointWarning
    from placer.errors import DataError as DataError
    from placer.errors import GraphError as GraphError
    from placer.errors import OpError as OpError
    from placer.errors import PlaceError as PlaceError
    from placer.errors import PlacerError as PlacerError
    from placer.errors import RunError as RunError
    from placer.errors import RunWarning as RunWarning
    from placer.errors import SpecError as SpecError
    from placer.errors import SpecErrors as SpecErrors
    from placer.errors import SpecWarning as SpecWarning
    from placer.exporting.export import ExportedModel as ExportedModel
    from placer.exporting.export import export as export
    from placer.exporting.restore import restore as restore
    from placer.launcher.engine_job import OnEngine as OnEngine
    from placer.launcher.launch import launch as launch
    from placer.launcher.predict import predict as predict
    from placer.launcher.remote import Hosts as Hosts
    from placer.launcher.train import train as train
    from placer.ops.functions.keys import step_key as step_key
    from placer.place import Cluster as Cluster
    from placer.place import NodeKind as NodeKind
    from placer.place import Place as Place
    from placer.place.guard import device_guard as device_guard
    from placer.place.guard import place_guard as place_guard
    from placer.plan.modules import data_folder as data_folder
    from placer.plan.plan import Plan as Plan
    from placer.plan.settings.training.slicing import slice_sizes as slice_sizes
    from placer.readers.streams.mark import Mark as Mark
    from placer.runtime.callbacks.callbacks import STOP as STOP
    from placer.runtime.callbacks.callbacks import Callback as Callback
    from placer.runtime.callbacks.callbacks import Record as Record
    from placer.runtime.control.options import Options as Options
    from placer.runtime.control.result import Restart as Restart
    from placer.runtime.control.result import Result as Result
    from placer.runtime.process.entry_point import run as run

__version__ = "0.1.0"

# These names are imported at their first use, so that `import placer` and the help of the
# command line load neither JAX nor numpy.
_HOMES = {
    "STOP": "placer.runtime.callbacks.callbacks",
    "BuildError": "placer.errors",
    "Callback": "placer.runtime.callbacks.callbacks",
    "CheckpointError": "placer.errors",
    "CheckpointWarning": "placer.errors",
    "Cluster": "placer.place",
    "DataError": "placer.errors",
    "GraphError": "placer.errors",
    "Hosts": "placer.launcher.remote",
    "OnEngine": "placer.launcher.engine_job",
    "Mark": "placer.readers.streams.mark",
    "NodeKind": "placer.place",
    "OpError": "placer.errors",
    "Options": "placer.runtime.control.options",
    "Place": "placer.place",
    "PlaceError": "placer.errors",
    "PlacerError": "placer.errors",
    "Plan": "placer.plan.plan",
    "Program": "placer.compiler.frontend.python.program",
    "Record": "placer.runtime.callbacks.callbacks",
    "Restart": "placer.runtime.control.result",
    "Result": "placer.runtime.control.result",
    "RunError": "placer.errors",
    "RunWarning": "placer.errors",
    "SpecError": "placer.errors",
    "SpecErrors": "placer.errors",
    "SpecWarning": "placer.errors",
    "Variable": "placer.compiler.frontend.python.variable",
    "append_backward": "placer.compiler.frontend.python.training",
    "compile": "placer.compiler.driver",
    "data_folder": "placer.plan.modules",
    "default_program": "placer.compiler.frontend.python.program",
    "device_guard": "placer.place.guard",
    "launch": "placer.launcher.launch",
    "place_guard": "placer.place.guard",
    "predict": "placer.launcher.predict",
    "export": "placer.exporting.export",
    "ExportedModel": "placer.exporting.export",
    "remat": "placer.compiler.frontend.python.remat",
    "restore": "placer.exporting.restore",
    "run": "placer.runtime.process.entry_point",
    "slice_sizes": "placer.plan.settings.training.slicing",
    "step_key": "placer.ops.functions.keys",
    "trace": "placer.compiler.frontend.python.trace",
    "train": "placer.launcher.train",
}

_MODULES = ("layers", "optimizer")

__all__ = sorted((*_HOMES, *_MODULES, "__version__"))


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"placer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'placer' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _html(value: object) -> str:
    """Return a plan or a result as HTML, for a notebook."""
    show = import_module("placer.report.page.notebook").html_of
    return show(value)  # type: ignore[no-any-return]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
