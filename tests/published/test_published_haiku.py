"""Models of Haiku with state: statistics of batches, and moving averages of codes."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from published import Outcome, Published, check, check_uses, train, train_plain

pytest.importorskip("haiku", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
STATE = {"models": ("make", "state"), "state": "state", "by_rows": False}
MODELS = {
    "resnet": Published(
        "haiku_resnet_net",
        {
            "image": RNG.normal(size=(24, 8, 8, 3)).astype("f"),
            "label": RNG.integers(0, 3, 24, np.int32),
        },
        **STATE,
    ),
    "vqvae": Published(
        "vqvae_net", {"x": RNG.normal(size=(24, 6)).astype("f")}, **STATE
    ),
}
CASES = [(name, place) for name in MODELS for place in ("servers", "all-reduce")]


@pytest.mark.parametrize(("name", "placement"), [*CASES, ("resnet", "split")])
def test_models_of_haiku_train_as_in_plain_jax(
    name: str, placement: str, tmp_path: Path
) -> None:
    check(MODELS[name], train(MODELS[name], placement, tmp_path), expected(name))


def test_a_model_of_haiku_is_resumed_predicted_and_exported(tmp_path: Path) -> None:
    check_uses(MODELS["vqvae"], expected("vqvae"), tmp_path)


@cache
def expected(name: str) -> Outcome:
    return train_plain(MODELS[name])
