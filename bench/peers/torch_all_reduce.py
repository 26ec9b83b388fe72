"""All-reduce between processes with torch over gloo.

    python torch_all_reduce.py BYTES --rank 0 --workers 2 --store FILE --repeats 10

Prints the seconds of one all-reduce, the median.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bytes", type=int)
    for name in ("rank", "workers", "repeats"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{options.store}",
        rank=options.rank,
        world_size=options.workers,
    )
    gradients = torch.zeros(options.bytes // 4)
    times = []
    for _ in range(2 + options.repeats):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(gradients)
        times.append(time.perf_counter() - begin)
    print(statistics.median(times[2:]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
