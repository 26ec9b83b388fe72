"""A classifier of Hugging Face, FlaxResNet, whose statistics are state."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, check_uses, train, train_plain

pytest.importorskip("transformers", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "hf_resnet_net",
    {
        "image": RNG.normal(size=(24, 3, 16, 16)).astype(np.float32),
        "label": RNG.integers(0, 3, 24, np.int32),
    },
    models=("make", "statistics"),
    state="stats",
    by_rows=False,
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce"])
def test_hf_resnet_trains_as_in_plain_jax(placement: str, tmp_path: Path) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), expected())


def test_hf_resnet_is_resumed_predicted_and_exported(tmp_path: Path) -> None:
    check_uses(MODEL, expected(), tmp_path)


@cache
def expected() -> Outcome:
    return train_plain(MODEL)
