"""The public names of the package, which no submodule shadows."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys

import placer

NAMES = [
    "BuildError",
    "Callback",
    "CheckpointError",
    "CheckpointWarning",
    "Cluster",
    "DataError",
    "ExportedModel",
    "GraphError",
    "Hosts",
    "Mark",
    "NodeKind",
    "OnEngine",
    "OpError",
    "Options",
    "Place",
    "PlaceError",
    "PlacerError",
    "Plan",
    "Program",
    "Record",
    "Restart",
    "Result",
    "RunError",
    "RunWarning",
    "STOP",
    "SpecError",
    "SpecErrors",
    "SpecWarning",
    "Variable",
    "__version__",
    "append_backward",
    "compile",
    "data_folder",
    "default_program",
    "device_guard",
    "export",
    "launch",
    "layers",
    "optimizer",
    "place_guard",
    "predict",
    "remat",
    "restore",
    "run",
    "slice_sizes",
    "step_key",
    "trace",
    "train",
]
MODULES = {"layers", "optimizer"}


def test_these_are_the_public_names() -> None:
    assert placer.__all__ == NAMES
    assert set(NAMES) <= set(dir(placer))


def test_each_public_name_has_a_docstring() -> None:
    values = {name: getattr(placer, name) for name in NAMES if name != "__version__"}
    assert all(inspect.getdoc(value) for value in values.values())
    functions = [name for name, value in values.items() if inspect.isfunction(value)]
    assert functions == [
        "append_backward",
        "compile",
        "data_folder",
        "default_program",
        "device_guard",
        "export",
        "launch",
        "place_guard",
        "predict",
        "remat",
        "restore",
        "run",
        "slice_sizes",
        "step_key",
        "trace",
        "train",
    ]
    assert {
        name for name, value in values.items() if inspect.ismodule(value)
    } == MODULES


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(placer, "no_such_name")


def test_no_module_has_the_name_of_a_public_function() -> None:
    # Importing a module `placer.compile` would replace the function `placer.compile`.
    modules = {module.name for module in pkgutil.iter_modules(placer.__path__)}
    assert modules & set(NAMES) == set(MODULES)


def test_importing_placer_imports_neither_jax_nor_numpy() -> None:
    code = (
        "import sys, placer; placer.Place, placer.compile, placer.launch, placer.train; "
        "placer.layers.fc, placer.optimizer.SGD, placer.Program, placer.data_folder; "
        "print({'jax', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"
