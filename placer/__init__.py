"""placer: one model, place strings on its ops, one readable JAX program per node.

import placer

placer.compile("specs/digits.yaml", "build")
result = placer.launch("build")
print(result.eval["accuracy"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from placer.errors import BuildError as BuildError
from placer.errors import DataError as DataError
from placer.errors import GraphError as GraphError
from placer.errors import OpError as OpError
from placer.errors import PlaceError as PlaceError
from placer.errors import PlacerError as PlacerError
from placer.errors import RunError as RunError
from placer.errors import RunWarning as RunWarning
from placer.errors import SpecError as SpecError
from placer.errors import SpecErrors as SpecErrors
from placer.front.remat import remat as remat
from placer.place import Cluster as Cluster
from placer.place import NodeKind as NodeKind
from placer.place import Place as Place
from placer.place.guard import device_guard as device_guard
from placer.place.guard import place_guard as place_guard

if TYPE_CHECKING:
    from placer import layers as layers
    from placer import optimizer as optimizer
    from placer.build.modules import data_folder as data_folder
    from placer.build.plan import Plan as Plan
    from placer.compiler import compile as compile
    from placer.config.slicing import slice_sizes as slice_sizes
    from placer.front.program import Program as Program
    from placer.front.program import default_program as default_program
    from placer.front.trace import trace as trace
    from placer.front.training import append_backward as append_backward
    from placer.front.variable import Variable as Variable
    from placer.launcher.local import launch as launch
    from placer.runtime.run.options import Options as Options
    from placer.runtime.run.process import run as run
    from placer.runtime.run.result import Result as Result

__version__ = "0.1.0"

# These names are imported when they are first used, so that `import placer` and the
# help of the command line load neither JAX nor numpy.
_HOMES = {
    "Options": "placer.runtime.run.options",
    "Plan": "placer.build.plan",
    "Program": "placer.front.program",
    "Result": "placer.runtime.run.result",
    "Variable": "placer.front.variable",
    "append_backward": "placer.front.training",
    "compile": "placer.compiler",
    "data_folder": "placer.build.modules",
    "default_program": "placer.front.program",
    "launch": "placer.launcher.local",
    "run": "placer.runtime.run.process",
    "slice_sizes": "placer.config.slicing",
    "trace": "placer.front.trace",
}

_MODULES = ("layers", "optimizer")

__all__ = [
    "BuildError",
    "Cluster",
    "DataError",
    "GraphError",
    "NodeKind",
    "OpError",
    "Options",
    "Place",
    "PlaceError",
    "PlacerError",
    "Plan",
    "Program",
    "Result",
    "RunError",
    "RunWarning",
    "SpecError",
    "SpecErrors",
    "Variable",
    "__version__",
    "append_backward",
    "compile",
    "data_folder",
    "default_program",
    "device_guard",
    "launch",
    "layers",
    "optimizer",
    "place_guard",
    "remat",
    "run",
    "slice_sizes",
    "trace",
]


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
