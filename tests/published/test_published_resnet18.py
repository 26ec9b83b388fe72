"""ResNet18 of flaxmodels, whose statistics are state."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, train, train_plain

pytest.importorskip("flaxmodels", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "resnet18_net",
    {
        "image": RNG.uniform(size=(24, 32, 32, 3)).astype(np.float32),
        "label": RNG.integers(0, 3, 24, np.int32),
    },
    models=("make", "statistics"),
    state="stats",
    by_rows=False,
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce", "split"])
def test_resnet18_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


@cache
def expected() -> Outcome:
    return train_plain(MODEL)
