"""Rows for seed_ctr.yaml: ids, and whether each was clicked.

Every id in [0, 1000) has a fixed random bit, its label; one row in ten has the other
bit. So the optimum is a loss of 0.325 and an accuracy of 0.9. The seeds are fixed: each
call yields the same rows.
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
    """Yield the rows to evaluate on: the same labels, with another seed."""
    return _rows(seed=2, count=TEST_ROWS)


def _rows(seed: int, count: int) -> Iterator[dict[str, int]]:
    bits = Random(0).choices((0, 1), k=IDS)
    random = Random(seed)
    for _ in range(count):
        number = random.randrange(IDS)
        flipped = random.random() < FLIPPED
        yield {"ids": number, "label": bits[number] ^ flipped}
