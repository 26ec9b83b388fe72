"""torch's EmbeddingBag with its sparse Adagrad, on one core: ns of CPU per key.

python torch_embedding.py ROWS BATCH DIM
"""

import json
import os
import sys
import time

import numpy as np
import torch

ROUNDS = 8


def draw(name, random, rows, batch):
    if name == "uniform":
        return random.integers(0, rows, batch)
    a, u = 1.05, random.random(batch)
    ranks = (u * ((rows + 1) ** (1 - a) - 1) + 1) ** (1 / (1 - a)) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)


def main(rows, batch, dim):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    bag = torch.nn.EmbeddingBag(rows, dim, sparse=True, mode="sum")
    rule = torch.optim.Adagrad(bag.parameters(), lr=0.1)
    random = np.random.default_rng(0)
    # The rank of a key says nothing of where its row is.
    where = random.permutation(rows)
    offsets = torch.arange(batch)
    gradient = torch.randn(batch, dim)
    found = {}
    for name in ("uniform", "zipf 1.05"):
        forward, both = [], []
        for _ in range(ROUNDS):
            ids = torch.from_numpy(where[draw(name, random, rows, batch)])
            start = time.process_time()
            out = bag(ids, offsets)
            middle = time.process_time()
            out.backward(gradient)
            rule.step()
            rule.zero_grad()
            forward.append(middle - start)
            both.append(time.process_time() - start)
        scale = 1e9 / batch
        found[name] = [scale * float(np.median(each[1:])) for each in (forward, both)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
