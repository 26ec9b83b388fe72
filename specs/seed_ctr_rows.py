"""Rows for seed_ctr.yaml: ids, and whether each was clicked.

Every id in [0, 1000) has a random bit that never changes, its label; one row in ten has
the other. So the best a model can do is a loss of 0.325 and an accuracy of 0.9. All is
drawn from fixed seeds: each call yields the same rows.
"""

from collections.abc import Iterator
from random import Random

IDS = 1000
FLIPPED = 0.1
TRAIN_ROWS = 16_384
TEST_ROWS = 2_048


def train() -> Iterator[dict[str, int]]:
    """Yield the rows to train on."""
    return _rows(seed=1, count=TRAIN_ROWS)


def test() -> Iterator[dict[str, int]]:
    """Yield the rows to evaluate on: the same bits, other draws."""
    return _rows(seed=2, count=TEST_ROWS)


def _rows(seed: int, count: int) -> Iterator[dict[str, int]]:
    bits = Random(0).choices((0, 1), k=IDS)
    random = Random(seed)
    for _ in range(count):
        number = random.randrange(IDS)
        flipped = random.random() < FLIPPED
        yield {"ids": number, "label": bits[number] ^ flipped}
