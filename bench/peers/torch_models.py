"""The models W1, W2 and W3 in torch, with their rows and optimizers.

`w1` has an embedding of 1000 ids and four layers, Adam 1e-4 and 512 rows for each worker;
`w3` is an MLP 1024-4096-4096-1000 with SGD 0.01 and 64 rows. `w2` is an MLP
429-400-400-400-1 with Adam 1e-3 and 1024 rows; torch_sparse.py has its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import nn

ROWS = {"w1": 512, "w2": 1024, "w3": 64}
WIDTHS = {
    "w1": (128, 1024, 512, 256, 2),
    "w2": (429, 400, 400, 400, 1),
    "w3": (1024, 4096, 4096, 1000),
}
RATES = {"w1": 1e-4, "w2": 1e-3, "w3": 0.01}
BATCHES = 10


def model(workload: str) -> nn.Sequential:
    torch.manual_seed(0)  # all processes have the same initial values
    widths = WIDTHS[workload]
    layers: list[nn.Module] = [nn.Embedding(1000, 128)] if workload == "w1" else []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batches(workload: str, worker: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the batches of a worker, which it uses in turn."""
    random = torch.Generator().manual_seed(worker)
    rows, classes = ROWS[workload], WIDTHS[workload][-1]
    made = []
    for _ in range(BATCHES):
        x = torch.randn(rows, WIDTHS[workload][0], generator=random)
        if workload == "w1":
            x = torch.randint(1000, (rows,), generator=random)
        made.append((x, torch.randint(classes, (rows,), generator=random)))
    return made


def optimizer(
    workload: str,
) -> Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]:
    """Return the optimizer of a workload, in torch's fastest form, which is fused."""
    rule = torch.optim.SGD if workload == "w3" else torch.optim.Adam
    return lambda parameters: rule(parameters, lr=RATES[workload], fused=True)
