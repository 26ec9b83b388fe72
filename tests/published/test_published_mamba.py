"""A language model of mamba2-jax, in Flax nnx."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, of_nnx, train, train_plain

pytest.importorskip("mamba2_jax", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "mamba_net",
    {"tokens": RNG.integers(0, 50, (24, 8), np.int32)},
    tolerance=1e-7,  # the library computes parts in float32
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce", "split"])
def test_mamba_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


@cache
def expected() -> Outcome:
    return train_plain(MODEL, of_nnx)
