"""W2 with torch in one process: a table of all possible keys, of which a step changes rows.

    python torch_sparse.py rows.npz 1000000 --steps 50 --warm 5

Prints the times when the steps after the first `--warm` ones began and ended.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch_models import ROWS, model, optimizer

DIM, RATE = 16, 0.05


def table(rows: int) -> tuple[nn.Embedding, torch.optim.Optimizer]:
    """Return a table whose gradients are sparse, and its optimizer."""
    embedding = nn.Embedding(rows, DIM, sparse=True)
    nn.init.uniform_(embedding.weight, -0.05, 0.05)
    rule = torch.optim.Adagrad(
        embedding.parameters(), RATE, initial_accumulator_value=0.1, eps=1e-7
    )
    return embedding, rule


def batches(
    file: str, worker: int, workers: int
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return the numbers of the keys, the dense features and the labels of each batch of
    a worker."""
    with np.load(file) as arrays:
        number, dense, label = (
            torch.from_numpy(arrays[name]) for name in ("number", "dense", "label")
        )
    made = []
    for low in range(worker * ROWS["w2"], len(number), workers * ROWS["w2"]):
        rows = slice(low, low + ROWS["w2"])
        made.append((number[rows].long(), dense[rows], label[rows]))
    return made


def inputs(rows: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Return what the MLP gets: the rows of all slots, and the dense features."""
    return torch.cat([rows.flatten(1), dense], 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("keys", type=int)
    for name in ("steps", "warm"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    embedding, sparse = table(options.keys)
    net = model("w2")
    dense_rule = optimizer("w2")(net.parameters())
    data = batches(options.file, 0, 1)
    loss_of = nn.BCEWithLogitsLoss()
    begin = 0.0
    for step in range(options.warm + options.steps):
        if step == options.warm:
            begin = time.monotonic()
        number, dense, label = data[step % len(data)]
        for rule in (sparse, dense_rule):
            rule.zero_grad(set_to_none=True)
        loss = loss_of(net(inputs(embedding(number), dense)), label)
        loss.backward()
        for rule in (sparse, dense_rule):
            rule.step()
    print(begin, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
