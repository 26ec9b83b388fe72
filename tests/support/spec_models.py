"""The models of `specs/`, and the plain JAX programs that they are compared with.

Every spec is compared with the generic plain JAX program of `support.plain`, in
float64. Some are also compared with a plain program written by hand, in float32 too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn import datasets

from placer.place.types import TensorType
from placer.plan.plan import Plan
from support.data_sets import FILES
from support.imported_files import import_file
from support.plain import sequences as plain_sequences
from support.plain import specs as plain_specs
from support.plain.specs import SPECS, Program

SPARSE = {
    file.stem for file in SPECS.glob("*.yaml") if "sparse: true" in file.read_text()
}
"""The specs of sparse tables, whose rows no file of parameters has."""
NAMES = tuple(
    sorted({file.stem for file in SPECS.glob("*.yaml")} - {"cnn_gpus", *FILES, *SPARSE})
)
"""All specs except those of sparse tables, which `tests/oracle/test_sparse_tables.py`
compares, the one that needs more devices than this process has, and those whose rows
are not shipped."""

_FREE = re.compile(r"^ *update: (?!sync$)", re.MULTILINE)
SYNCHRONOUS = tuple(
    name for name in NAMES if not _FREE.search((SPECS / f"{name}.yaml").read_text())
)
"""Their synchronous specs, which train as one process does."""

PLAIN_PROGRAMS: dict[str, Callable[[], Program]] = {
    "digits": plain_specs.digits,
    "diabetes": plain_specs.diabetes,
    "seed_ctr": plain_specs.seed_ctr,
    "two_workers": plain_specs.two_workers,
    "lstm": plain_sequences.lstm,
    "transformer": plain_sequences.transformer,
}


def copy_spec(model: str, folder: Path, precision: str) -> Path:
    """Copy a spec and all modules of `specs/` to a folder, with another precision."""
    for file in SPECS.glob("*.py"):
        shutil.copy(file, folder)
    spec = folder / f"{model}.yaml"
    text = (SPECS / spec.name).read_text()
    spec.write_text(f"{text}\nprecision: {precision}\n")
    return spec


def read_rows(
    spec: Mapping[str, Any], folder: Path
) -> dict[str, dict[str, np.ndarray]]:
    """Return the columns of a spec to train on and to evaluate on, in float64."""
    inputs = {name: TensorType.parse(text) for name, text in spec["inputs"].items()}
    return {
        which: _columns(spec["data"][which], inputs, folder)
        for which in ("train", "eval")
    }


def _columns(
    section: Mapping[str, Any], inputs: Mapping[str, TensorType], folder: Path
) -> dict[str, np.ndarray]:
    kind, _, where = section["source"].partition(":")
    if kind == "sklearn":
        bunch = getattr(datasets, f"load_{where}")()
        usual = {n: "data" if t.is_float else "target" for n, t in inputs.items()}
        mapping = section.get("columns", usual)
        indices = _rows_of_split(len(bunch.target), section["split"])
        columns = {name: bunch[column][indices] for name, column in mapping.items()}
    else:
        name, _, function = where.partition(":")
        rows = getattr(import_file(folder / f"{name}.py"), function)()
        if not isinstance(rows, Mapping):
            listed = list(rows)
            rows = {name: np.array([row[name] for row in listed]) for name in inputs}
        columns = {name: rows[name] for name in inputs}
    return {
        name: column.astype("float64" if inputs[name].is_float else inputs[name].dtype)
        for name, column in columns.items()
    }


def _rows_of_split(rows: int, split: str) -> np.ndarray:
    """Return the indices of a split: after a fixed permutation, the last fifth is
    test."""
    order, fifth = np.random.default_rng(0).permutation(rows), rows // 5
    return order[rows - fifth :] if split == "test" else order[: rows - fifth]


def initial_parameters(plan: Plan) -> dict[str, np.ndarray]:
    """Draw initial parameters from which training does not amplify rounding errors.

    No activation is near the corner of relu, no gradient near the epsilon of adam.
    """
    random = np.random.default_rng(4)
    values = {}
    for parameter in plan.parameters:
        name, shape, size = parameter.name, parameter.shape, 0.1
        if len(shape) > 1 and not name.endswith(".table"):
            size = 0.3 * shape[0] ** -0.5
        mean = 150.0 if name == "out.b" and plan.name == "diabetes" else 0.0
        if name.endswith((".scale", ".running_variance")):
            mean = 1.0
        values[name] = random.normal(mean, size, shape).astype(parameter.dtype)
    return values


def read_yaml(file: Path) -> dict[str, Any]:
    """Return a spec as the mapping of its YAML."""
    spec: dict[str, Any] = yaml.safe_load(file.read_text())
    return spec
