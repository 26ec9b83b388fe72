"""A classifier of Hugging Face, FlaxViT, with dropout."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, train, train_plain

pytest.importorskip("transformers", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "vit_net",
    {
        "image": RNG.normal(size=(24, 3, 8, 8)).astype(np.float32),
        "label": RNG.integers(0, 3, 24, np.int32),
    },
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce"])
def test_vit_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


@cache
def expected() -> Outcome:
    return train_plain(MODEL)
