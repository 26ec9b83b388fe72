"""The learning rates of a run, by the name of the optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.sparse_specs import write_sparse_spec

import placer
from placer.runtime.metrics.learning_rates import rate_schedules

ADAGRAD = {"op": "adagrad", "learning_rate": 0.1}
ADAM = {"op": "adam", "learning_rate": 0.01}
HALVED = {"exponential": {"init": 0.4, "rate": 0.5, "steps": 1}}


@pytest.mark.parametrize(
    ("optimizers", "rates"),
    [
        ([ADAGRAD], {"adagrad": 0.1}),
        ([{**ADAGRAD, "match": "*.table"}, ADAM], {"adam": 0.01, "adagrad": 0.1}),
        (
            [
                {**ADAGRAD, "match": "u.table", "learning_rate": HALVED},
                {**ADAGRAD, "match": "i.table", "learning_rate": 0.3},
                ADAM,
            ],
            {"adam": 0.01, "u.table": 0.2, "i.table": 0.3},
        ),
    ],
)
def test_optimizers_of_sparse_tables_have_learning_rates(
    tmp_path: Path, optimizers: list[dict[str, Any]], rates: dict[str, float]
) -> None:
    file = write_sparse_spec(tmp_path, optimizer=optimizers)
    plan = placer.compile(file, tmp_path / "build")
    schedules = rate_schedules(plan)
    assert {name: rate(1) for name, rate in schedules.items()} == pytest.approx(rates)
