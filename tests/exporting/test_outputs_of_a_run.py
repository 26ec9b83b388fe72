"""placer predict, an exported model.py without placer, and the StableHLO file give the
outputs of a run's own evaluation.

A run reports metrics of its evaluation, and no outputs. So a metric is added to each
spec whose function gets the outputs and the inputs of a batch, as the evaluation of the
run has computed and read them, and stores them (`support/seen_rows.py`). The run has the
processes and the optimizations of XLA that every run has; it trains a few steps, and
predictions and exports take their parameters from its checkpoint.
"""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from support import seen_rows
from support.data_sets import FILES
from support.exported import TOLERANCE, check_close, check_exported
from support.marks import slow_but
from support.spec_models import SPARSE, SPECS, copy_spec

import placer
from placer.plan.plan import Plan
from placer.runtime.control.events import Event, Start

STEPS = 5
WITH_FEATURES = ("heter_sparse", "word2vec_sparse")
YAML = sorted({file.stem for file in SPECS.glob("*.yaml")} - {*FILES, *WITH_FEATURES})
"""All specs but those with features, which an exported model computes of columns."""
CASES = [
    (model, precision)
    for model, precision in product(YAML, TOLERANCE)
    if precision == "float64" or model not in SPARSE
]
"""The specs in both precisions; with keys, which a metric has in float64 only, in that."""
PLACES = {
    "digits": "/node:worker/cpu",
    "flax_block": "/node:worker:1",
    "flax_block_gpus": "/node:worker/gpu:0-1",
}
"""The specs in Python, and the places of their outputs."""

PROGRAM = """
import {model}
from placer import layers, place_guard


def build():
    program = {model}.build()
    values = [program.variable(name, name) for name in ("probability", "image")]
    with program, place_guard("{place}"):
        layers.metric("seen_rows:seen", *values, name="seen")
    program.update(metrics=["loss", "accuracy", "seen"])
    return program
"""


def compile_seen_yaml(model: str, precision: str, folder: Path) -> Plan:
    """Compile a spec with the metric `seen` of its outputs and their inputs."""
    file = copy_spec(model, folder, precision)
    plan = placer.compile(file, folder / "plain")
    spec = yaml.safe_load(file.read_text())
    metric = {"name": "seen", "op": "metric", "fn": "seen_rows:seen"}
    metric["in"] = seen_values(plan)
    spec["graph"][-1]["ops"].append(metric)
    spec["train"]["metrics"].append("seen")
    file.write_text(yaml.safe_dump(spec, sort_keys=False))
    return placer.compile(file, folder / "build")


def compile_seen_program(model: str, precision: str, folder: Path) -> Plan:
    """Compile a spec in Python with the metric `seen`."""
    for file in SPECS.glob("*.py"):
        text = file.read_text()
        program = f'Program(precision="{precision}",'
        (folder / file.name).write_text(text.replace("Program(", program))
    text = PROGRAM.format(model=model, place=PLACES[model])
    (folder / "seen_spec.py").write_text(text)
    return placer.compile(f"{folder}/seen_spec.py:build", folder / "build")


def seen_values(plan: Plan) -> list[str]:
    """Return the names of all outputs, then those of the inputs that they need."""
    inputs = dict.fromkeys(name for each in plan.outputs for name in each.inputs)
    return [*(output.name for output in plan.outputs), *inputs]


def read_seen(folder: Path, rows: int) -> list[np.ndarray]:
    """Return the values of the last evaluation, which has so many rows; the files
    before are those of the warm-up and of earlier evaluations."""
    batches: list[list[np.ndarray]] = []
    for file in sorted(folder.iterdir(), reverse=True):
        if sum(len(batch[0]) for batch in batches) == rows:
            break
        with np.load(file) as opened:
            batches.append([opened[f"arr_{i}"] for i in range(len(opened))])
    assert sum(len(batch[0]) for batch in batches) == rows
    return [np.concatenate(values) for values in zip(*batches, strict=True)]


def check_outputs(
    plan: Plan, precision: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a build with the metric `seen`, and compare the outputs of its evaluation
    with those of predictions and exports."""
    build, kept, stored = folder / "build", folder / "kept", folder / "stored"
    stored.mkdir()
    started: list[Start] = []

    def watch(event: Event) -> None:
        if isinstance(event, Start):
            started.append(event)

    with monkeypatch.context() as environment:
        environment.setenv("SEEN_ROWS", str(stored))
        if precision == "float64":  # else JAX may convert what it passes to `_store`
            environment.setenv("JAX_ENABLE_X64", "1")
        result = placer.launch(build, steps=STEPS, checkpoint=kept, watch=watch)
    names = seen_values(plan)
    values = read_seen(stored, started[0].evaluation_rows)
    columns = dict(zip(names, values, strict=True))
    outputs = {output.name: columns.pop(output.name) for output in plan.outputs}
    first = next(iter(outputs.values())).astype("float64")
    reported = pytest.approx((first**2).mean(), rel=TOLERANCE[precision])
    assert result.eval["seen"] == reported
    predicted = placer.predict(build, columns, params=kept, raw=True)
    assert predicted.keys() == outputs.keys()
    for name, array in predicted.items():
        check_close(array, outputs[name], precision, f"placer predict: {name}")
    check_exported(build, kept, columns, outputs, precision, folder)


IN_EVERY_RUN = [("two_workers", "float64")]


@pytest.mark.parametrize(("model", "precision"), slow_but(IN_EVERY_RUN, CASES))
def test_a_spec_gives_the_outputs_of_its_evaluation(
    model, precision, tmp_path, monkeypatch
):
    shutil.copy(seen_rows.__file__, tmp_path)
    plan = compile_seen_yaml(model, precision, tmp_path)
    check_outputs(plan, precision, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "precision"), [*product(PLACES, TOLERANCE)])
def test_a_program_gives_the_outputs_of_its_evaluation(
    model, precision, tmp_path, monkeypatch
):
    shutil.copy(seen_rows.__file__, tmp_path)
    plan = compile_seen_program(model, precision, tmp_path)
    assert plan.settings.precision == precision
    check_outputs(plan, precision, tmp_path, monkeypatch)
