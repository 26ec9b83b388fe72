"""Two towers of Hugging Face, FlaxCLIP, and a loss over the batch."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, train, train_plain

pytest.importorskip("transformers", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "clip_net",
    {
        "tokens": RNG.integers(0, 50, (24, 8), np.int32),
        "image": RNG.normal(size=(24, 3, 8, 8)).astype(np.float32),
    },
    by_rows=False,
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce", "split"])
def test_clip_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


@cache
def expected() -> Outcome:
    return train_plain(MODEL)
