"""R1 for every op, every optimizer and every way of training, in small models."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.drawn.graphs import columns, initial_values
from support.drawn.sketch import INPUTS
from support.listed_models import MODELS, PLACEMENTS, spec_of
from support.marks import slow_but
from support.plain import step as plain
from support.plain.graph import flat
from support.plain.metrics import METRICS
from support.plain.training import hinges_on_rounding
from support.run_ways import STEPS, Rows, check_same, run_build, run_plain, write

from placer import ops
from placer.compiler import compile
from placer.config import optimizers, schedules
from placer.ops.composites import COMPOSITES

IN_EVERY_RUN = [
    *((model, "split over workers") for model in MODELS),
    ("numbers", "op by op on two workers"),
    ("rows", "op by op on all and some, optimizers on all"),
]

pytestmark = pytest.mark.usefixtures("in_float64")


@dataclass(frozen=True)
class Known:
    """What a model is held against: its plain program, and its one process."""

    rows: Rows
    initial: dict[str, np.ndarray]
    plain: plain.Trace
    alone: plain.Trace


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Each model as it is without a placement, worked out once for all of them."""
    found: dict[str, Known] = {}

    def of(model: str) -> Known:
        if model not in found:
            found[model] = _known(model, tmp_path_factory.mktemp(model))
        return found[model]

    return of


def _known(model: str, folder: Path) -> Known:
    spec = spec_of(MODELS[model])
    inputs = {name: INPUTS[name] for name in spec["inputs"]}
    train, evaluation = MODELS[model].rows
    rows = {
        "train": columns(inputs, train, [1]),
        "eval": columns(inputs, evaluation, [2]),
    }
    file = write(spec, rows, folder)
    plan = compile(file, folder / "seen", single_process=True)
    initial = initial_values({p.name: p.shape for p in plan.parameters}, [3])
    return Known(
        rows,
        initial,
        run_plain(file, rows, initial),
        run_build(file, folder / "one", initial, single_process=True),
    )


@pytest.mark.parametrize("model", MODELS)
def test_one_process_trains_as_plain_jax_does(model, known):
    check_same(known(model).alone, known(model).plain, "one process")


@pytest.mark.parametrize(
    ("model", "placement"), slow_but(IN_EVERY_RUN, product(MODELS, PLACEMENTS))
)
def test_a_placement_changes_nothing(model, placement, known, tmp_path):
    found, spec = known(model), PLACEMENTS[placement](spec_of(MODELS[model]))
    file = write(spec, found.rows, tmp_path)
    placed = run_build(file, tmp_path / "placed", found.initial, single_process=False)
    check_same(placed, found.plain, f"{placement} against plain JAX")
    check_same(placed, found.alone, f"{placement} against one process")


@pytest.mark.parametrize("model", MODELS)
def test_what_has_no_gradient_in_exact_arithmetic_is_named(model, known):
    """All else learns, and nothing hinges on how sums are rounded."""
    spec, gradients = spec_of(MODELS[model]), known(model).plain.gradients
    assert len(gradients) == STEPS
    size = {n: max(np.linalg.norm(g[n]) for g in gradients) for n in gradients[0]}
    assert {n for n, norm in size.items() if norm < 1e-12} == {*MODELS[model].zero}
    assert min(norm for n, norm in size.items() if n not in MODELS[model].zero) > 1e-6
    assert not any(hinges_on_rounding(spec, each) for each in gradients)


def test_every_op_stands_in_a_model():
    used = {entry["op"] for m in MODELS.values() for entry in flat(spec_of(m)["graph"])}
    declared = {kind for kind in ops.kinds() if not ops.find(kind).inserted}
    composites = {composite.kind for composite in COMPOSITES}
    assert used == declared | composites | {"call", "parameter"}
    assert used >= METRICS.keys()


def test_models_train_in_every_way():
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
    assert {entry["op"] for entry in entries} == {*optimizers.names()}
    text = repr(entries)
    assert [form for form in schedules.FORMS if f"'{form}'" not in text] == []
    clips = [each["clip"] for each in (*sections, *entries) if "clip" in each]
    assert {how for clip in clips for how in clip} == {"global_norm", "norm", "value"}
    assert any("remat" in repr(spec_of(model)["graph"]) for model in MODELS.values())
