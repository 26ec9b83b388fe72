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
    from placer.build.modules import data_folder as data_folder
    from placer.build.plan import Plan as Plan
    from placer.compiler import compile as compile
    from placer.config.slicing import slice_sizes as slice_sizes
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
    from placer.front.program import Program as Program
    from placer.front.program import default_program as default_program
    from placer.front.remat import remat as remat
    from placer.front.trace import trace as trace
    from placer.front.training import append_backward as append_backward
    from placer.front.variable import Variable as Variable
    from placer.launcher.engine_job import OnEngine as OnEngine
    from placer.launcher.launch import launch as launch
    from placer.launcher.predict import predict as predict
    from placer.launcher.remote import Hosts as Hosts
    from placer.launcher.train import train as train
    from placer.place import Cluster as Cluster
    from placer.place import NodeKind as NodeKind
    from placer.place import Place as Place
    from placer.place.guard import device_guard as device_guard
    from placer.place.guard import place_guard as place_guard
    from placer.runtime.run.callbacks import STOP as STOP
    from placer.runtime.run.callbacks import Callback as Callback
    from placer.runtime.run.callbacks import Record as Record
    from placer.runtime.run.options import Options as Options
    from placer.runtime.run.process import run as run
    from placer.runtime.run.result import Result as Result

__version__ = "0.1.0"

# These names are imported when they are first used, so that `import placer` and the
# help of the command line load neither JAX nor numpy.
_HOMES = {
    "STOP": "placer.runtime.run.callbacks",
    "BuildError": "placer.errors",
    "Callback": "placer.runtime.run.callbacks",
    "CheckpointError": "placer.errors",
    "CheckpointWarning": "placer.errors",
    "Cluster": "placer.place",
    "DataError": "placer.errors",
    "GraphError": "placer.errors",
    "Hosts": "placer.launcher.remote",
    "OnEngine": "placer.launcher.engine_job",
    "NodeKind": "placer.place",
    "OpError": "placer.errors",
    "Options": "placer.runtime.run.options",
    "Place": "placer.place",
    "PlaceError": "placer.errors",
    "PlacerError": "placer.errors",
    "Plan": "placer.build.plan",
    "Program": "placer.front.program",
    "Record": "placer.runtime.run.callbacks",
    "Result": "placer.runtime.run.result",
    "RunError": "placer.errors",
    "RunWarning": "placer.errors",
    "SpecError": "placer.errors",
    "SpecErrors": "placer.errors",
    "SpecWarning": "placer.errors",
    "Variable": "placer.front.variable",
    "append_backward": "placer.front.training",
    "compile": "placer.compiler",
    "data_folder": "placer.build.modules",
    "default_program": "placer.front.program",
    "device_guard": "placer.place.guard",
    "launch": "placer.launcher.launch",
    "place_guard": "placer.place.guard",
    "predict": "placer.launcher.predict",
    "export": "placer.exporting.export",
    "ExportedModel": "placer.exporting.export",
    "remat": "placer.front.remat",
    "run": "placer.runtime.run.process",
    "slice_sizes": "placer.config.slicing",
    "trace": "placer.front.trace",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
