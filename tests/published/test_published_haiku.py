"""A residual network of Haiku with statistics of batches, which are state."""

from pathlib import Path

import numpy as np
import pytest
from published import Published, check, train, train_plain

pytest.importorskip("haiku", reason="pip install '.[models]'")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_float64")]
RNG = np.random.default_rng(0)
MODEL = Published(
    "haiku_resnet_net",
    {
        "image": RNG.normal(size=(24, 8, 8, 3)).astype("f"),
        "label": RNG.integers(0, 3, 24, np.int32),
    },
    ("make", "state"),
    state="state",
    by_rows=False,
)


@pytest.mark.parametrize("placement", ["servers", "all-reduce"])
def test_a_network_of_haiku_trains_as_in_plain_jax(
    placement: str, tmp_path: Path
) -> None:
    check(MODEL, train(MODEL, placement, tmp_path), train_plain(MODEL))
