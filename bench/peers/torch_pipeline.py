"""The model of `bench/specs/pipeline.yaml` with torch's pipelining, over gloo, schedule 1F1B.

`pipeline.py` runs this in an environment with torch; each stage is a process.

    python torch_pipeline.py STEPS [CORES]

Prints microbatches per second, without the first two steps. With CORES, such as `0,1`,
each process is pinned to one core.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, ROWS, MICROBATCHES = 1024, 256, 8
UNTIMED_STEPS = 2


def stage(rank: int, steps: int, cores: list[int], store: str, results) -> None:
    if cores:
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    placed = PipelineStage(layer, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(placed, MICROBATCHES, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x = torch.randn(ROWS * MICROBATCHES, WIDTH)
    begin = 0.0
    for number in range(UNTIMED_STEPS + steps):
        if number == UNTIMED_STEPS:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        schedule.step(x) if rank == 0 else schedule.step(target=x, losses=[])
        optimizer.step()
    dist.barrier()
    if rank == 0:
        results.put(steps * MICROBATCHES / (time.perf_counter() - begin))
    dist.destroy_process_group()


def main() -> None:
    steps = int(sys.argv[1])
    cores = [int(core) for core in sys.argv[2].split(",")] if len(sys.argv) > 2 else []
    mp.set_start_method("spawn")
    results = mp.SimpleQueue()
    store = os.path.join(os.environ["STORE"], "store")
    processes = [
        mp.Process(target=stage, args=(rank, steps, cores, store, results))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    rate = results.get()
    for process in processes:
        process.join()
    print(rate)


if __name__ == "__main__":
    main()
