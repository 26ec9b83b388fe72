"""The U-Net of Stable Diffusion in diffusers, with dropout."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, train, train_plain

pytest.importorskip("diffusers", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "unet_net",
    {
        "noisy": RNG.normal(size=(24, 4, 8, 8)).astype(np.float32),
        "time": RNG.integers(0, 1000, 24, np.int32),
        "text": RNG.normal(size=(24, 3, 16)).astype(np.float32),
        "noise": RNG.normal(size=(24, 4, 8, 8)).astype(np.float32),
    },
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce", "split"])
def test_unet_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


@cache
def expected() -> Outcome:
    return train_plain(MODEL)
