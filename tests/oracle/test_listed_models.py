"""R1 for every op, optimizer, schedule and clip, in small models."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.drawn.graphs import columns, initial_values
from support.drawn.sketch import INPUTS
from support.listed_models import MODELS, PLACEMENTS, spec_of
from support.marks import MAY_PAIR_ROWS, slow_but
from support.plain import step as plain
from support.plain.graph import flatten_ops
from support.plain.metrics import METRICS
from support.plain.training import depends_on_rounding
from support.run_ways import STEPS, Rows, check_same, run_build, run_plain, write_spec

from placer import ops
from placer.compiler.driver import compile
from placer.ops.composites import COMPOSITES
from placer.plan.settings.training import optimizers, schedules

IN_EVERY_RUN = [
    ("activations", "split over workers"),
    ("numbers", "op by op on two workers"),
    ("rows", "op by op on all and some, optimizers on all"),
]

pytestmark = [
    pytest.mark.usefixtures("in_float64"),
    MAY_PAIR_ROWS,
]


@dataclass(frozen=True)
class Reference:
    """The results of a model without placement: as plain JAX, and as one process."""

    rows: Rows
    initial: dict[str, np.ndarray]
    plain: plain.Trace
    alone: plain.Trace


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return a function that computes the reference of a model once."""
    references: dict[str, Reference] = {}

    def of(model: str) -> Reference:
        if model not in references:
            references[model] = _run_reference(model, tmp_path_factory.mktemp(model))
        return references[model]

    return of


def _run_reference(model: str, folder: Path) -> Reference:
    spec = spec_of(MODELS[model])
    inputs = {name: INPUTS[name] for name in spec["inputs"]}
    train, evaluation = MODELS[model].rows
    rows = {
        "train": columns(inputs, train, [1]),
        "eval": columns(inputs, evaluation, [2]),
    }
    file = write_spec(spec, rows, folder)
    plan = compile(file, folder / "seen", single_process=True)
    initial = initial_values({p.name: p.shape for p in plan.parameters}, [3])
    return Reference(
        rows,
        initial,
        run_plain(file, rows, initial),
        run_build(file, folder / "one", initial, single_process=True),
    )


@pytest.mark.parametrize("model", slow_but(["numbers", "rows", "activations"], MODELS))
def test_one_process_trains_like_plain_jax(model, reference):
    check_same(reference(model).alone, reference(model).plain, "one process")


@pytest.mark.parametrize(
    ("model", "placement"), slow_but(IN_EVERY_RUN, product(MODELS, PLACEMENTS))
)
def test_a_placement_does_not_change_the_result(model, placement, reference, tmp_path):
    unplaced, spec = reference(model), PLACEMENTS[placement](spec_of(MODELS[model]))
    file = write_spec(spec, unplaced.rows, tmp_path)
    placed = run_build(
        file, tmp_path / "placed", unplaced.initial, single_process=False
    )
    check_same(placed, unplaced.plain, f"{placement} against plain JAX")
    check_same(placed, unplaced.alone, f"{placement} against one process")


@pytest.mark.parametrize("model", slow_but(["numbers", "rows", "activations"], MODELS))
def test_parameters_with_zero_gradients_are_listed(model, reference):
    """All other parameters learn, and no update depends on rounding errors."""
    spec, gradients = spec_of(MODELS[model]), reference(model).plain.gradients
    assert len(gradients) == STEPS
    size = {n: max(np.linalg.norm(g[n]) for g in gradients) for n in gradients[0]}
    assert {n for n, norm in size.items() if norm < 1e-12} == {
        *MODELS[model].zero_gradients
    }
    assert (
        min(norm for n, norm in size.items() if n not in MODELS[model].zero_gradients)
        > 1e-6
    )
    assert not any(depends_on_rounding(spec, each) for each in gradients)


def test_every_op_is_in_a_model():
    used = {
        entry["op"]
        for m in MODELS.values()
        for entry in flatten_ops(spec_of(m)["graph"])
    }
    declared = {kind for kind in ops.kinds() if not ops.find(kind).inserted}
    composites = {composite.kind for composite in COMPOSITES}
    elsewhere = {
        "metric"
    }  # a function of the user's: tests/compiler/frontend/test_metric.py
    assert used == (declared - elsewhere) | composites | {"call", "parameter"}
    assert used >= METRICS.keys() - elsewhere


def test_the_models_use_every_training_option():
    sections = [spec_of(model)["train"] for model in MODELS.values()]
    entries = [
        entry
        for section in sections
        for entry in (
            section["optimizer"]
            if isinstance(section["optimizer"], list)
            else [section["optimizer"]]
        )
    ]
    assert {entry["op"] for entry in entries} == {*optimizers.DENSE_RULES}
    text = repr(entries)
    assert [form for form in schedules.FORMS if f"'{form}'" not in text] == []
    clips = [each["clip"] for each in (*sections, *entries) if "clip" in each]
    assert {how for clip in clips for how in clip} == {"global_norm", "norm", "value"}
    assert any("remat" in repr(spec_of(model)["graph"]) for model in MODELS.values())
