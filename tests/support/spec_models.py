"""The models of `specs/`, all of them, and what each is held against.

A spec that is put there joins by itself: it is read by `plain`, in float64. Some have a
program written by hand too, and are held against it in float32 as well.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import yaml
from sklearn import datasets

from placer.build.plan import Plan
from placer.types import TensorType
from support.plain import sequences as plain_sequences
from support.plain import specs as plain_specs
from support.plain.specs import SPECS, Program

NAMES = tuple(
    sorted(file.stem for file in SPECS.glob("*.yaml") if file.stem != "cnn_gpus")
)
"""All but the one that takes more devices than this process has."""

BY_HAND: dict[str, Callable[[], Program]] = {
    "digits": plain_specs.digits,
    "diabetes": plain_specs.diabetes,
    "seed_ctr": plain_specs.seed_ctr,
    "two_workers": plain_specs.two_workers,
    "lstm": plain_sequences.lstm,
    "transformer": plain_sequences.transformer,
}


def copied(model: str, folder: Path, precision: str) -> Path:
    """The spec in another folder, with all modules of `specs/`."""
    for file in SPECS.glob("*.py"):
        shutil.copy(file, folder)
    spec = folder / f"{model}.yaml"
    text = (SPECS / spec.name).read_text()
    spec.write_text(f"{text}\nprecision: {precision}\n")
    return spec


def rows(spec: Mapping[str, Any], folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """The columns of a spec's data, to train and to evaluate on, in float64."""
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
        chosen = section.get("columns", usual)
        kept = _kept(len(bunch.target), section["split"])
        found = {name: bunch[column][kept] for name, column in chosen.items()}
    else:
        name, _, function = where.partition(":")
        made = list(getattr(_module(folder / f"{name}.py"), function)())
        found = {name: np.array([row[name] for row in made]) for name in inputs}
    return {
        name: column.astype("float64" if inputs[name].is_float else inputs[name].dtype)
        for name, column in found.items()
    }


def _kept(rows: int, split: str) -> np.ndarray:
    """The last fifth is to test on, after one fixed permutation."""
    order, fifth = np.random.default_rng(0).permutation(rows), rows // 5
    return order[rows - fifth :] if split == "test" else order[: rows - fifth]


def _module(file: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"plain_{file.stem}", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def drawn_parameters(plan: Plan) -> dict[str, np.ndarray]:
    """Values from which training does not magnify rounding: none of the activations
    is near a corner of relu by design, none of the gradients near adam's epsilon."""
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


def read(file: Path) -> dict[str, Any]:
    """A spec as the YAML's own mapping."""
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found
