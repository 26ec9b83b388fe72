"""W3 with torch: in one process, or in several with DistributedDataParallel over gloo.

    python torch_ddp.py --rank 0 --workers 2 --store FILE --steps 20 --warm 3

Prints the times when the steps after the first `--warm` ones began and ended.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch_models import batches, model, optimizer


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("rank", "workers", "steps", "warm"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net: nn.Module = model("w3")
    if options.workers > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{options.store}",
            rank=options.rank,
            world_size=options.workers,
        )
        # Gradients are views of the buckets that are all-reduced: one copy less.
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    rule = optimizer("w3")(net.parameters())
    data = batches("w3", options.rank)
    loss_of = nn.CrossEntropyLoss()
    begin = 0.0
    for step in range(options.warm + options.steps):
        if step == options.warm:
            begin = time.monotonic()
        x, label = data[step % len(data)]
        rule.zero_grad(set_to_none=True)
        loss_of(net(x), label).backward()
        rule.step()
    print(begin, time.monotonic(), flush=True)
    if options.workers > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
