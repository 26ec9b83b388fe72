"""wide_deep on a Ray cluster: worker:0-1, heter:0, ps:0. Written by placer.

On a machine of the cluster:      python run.py
From elsewhere, in this folder:   ray job submit --working-dir . -- python run.py

The nodes need:
    worker:0-1  4 CPUs, 8.6 GB of memory
    heter:0     4 CPUs, 1 GPU, 8.6 GB of memory
    ps:0        4 CPUs, 8.6 GB of memory
"""

import os
from pathlib import Path

from placer.command import main

folder = Path(__file__).resolve().parent
# `ray job submit` copies the folder to a place where other users may be able to write.
# Anyone who can change the build there can also change this script.
os.environ["PLACER_TRUST"] = f"{folder}:{os.environ.get('PLACER_TRUST', '')}"
main(
    [
        "launch",
        str(folder / "build"),
        "--on=ray",
        "--option=address=10.0.0.1:6379",
        "--option=cpus=4",
        "--option=memory=8GiB",
        "--option=strategy=SPREAD",
        "--option=timeout=600",
        "--option=grows=true",
        "--checkpoint=/scratch/wide deep",
        "--data=/data/ada's rows",
    ]
)
