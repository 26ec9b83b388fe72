"""A language model of Hugging Face, FlaxGPT2, with dropout."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, train, train_plain

pytest.importorskip("transformers", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published("gpt2_net", {"tokens": RNG.integers(0, 50, (24, 8), np.int32)})


@pytest.mark.parametrize("placement", ["servers", "all-reduce", "split"])
def test_gpt2_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


@cache
def expected() -> Outcome:
    return train_plain(MODEL)
