"""A graph network of jraphx in Flax nnx, with BatchNorm and dropout."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, check_uses, of_nnx, train, train_plain

pytest.importorskip("jraphx", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "gcn_net",
    {
        "nodes": RNG.normal(size=(24, 6, 5)).astype(np.float32),
        "edges": RNG.integers(0, 6, (24, 2, 10), np.int32),
        "label": RNG.integers(0, 3, 24, np.int32),
    },
    by_rows=False,
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce"])
def test_gcn_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


def test_gcn_is_resumed_predicted_and_exported(tmp_path: Path) -> None:
    check_uses(MODEL, expected(), tmp_path)


@cache
def expected() -> Outcome:
    return train_plain(MODEL, of_nnx)
