"""Rows for the benchmark of a mesh: random, always the same."""

import numpy as np

ROWS = 8192


class Rows:
    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.x = random.standard_normal((ROWS, 256), np.float32)
        self.label = random.integers(0, 10, ROWS).astype(np.int32)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        return {"x": self.x[row], "label": self.label[row]}


def train() -> Rows:
    return Rows()
