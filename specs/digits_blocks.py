"""Blocks of rows for linen_digits.py and keras_digits.py: the digits of scikit-learn.

A loader of tf.data, grain or PyTorch can be returned in the same way, if its batches are
dicts: placer takes the rows of the blocks, and shuffles them. Each block has 256 rows, and
the last one the rest.
"""

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

Block = dict[str, np.ndarray]


def train() -> Iterator[Block]:
    return _blocks(slice(0, 1437))


def test() -> Iterator[Block]:
    return _blocks(slice(1437, None))


def _blocks(part: slice) -> Iterator[Block]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[part]
    for first in range(0, len(order), 256):
        rows = order[first : first + 256]
        yield {"image": images[rows].reshape(-1, 8, 8, 1) / 16, "label": labels[rows]}
