"""digits on a Ray cluster: worker:0-1, ps:0-1. Written by placer.

On a machine of the cluster:      python run.py
From elsewhere, in this folder:   ray job submit --working-dir . -- python run.py

The nodes need:
    worker:0-1, ps:0-1  1 CPU, 604.0 MB of memory
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
        "--option=address=auto",
        "--option=cpus=1",
        "--option=strategy=PACK",
        "--option=timeout=300",
        "--steps=100",
    ]
)
