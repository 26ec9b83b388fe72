"""digits on a Ray cluster: worker:0-1, ps:0-1. Written by placer.

On a machine of the cluster:      python run.py
From elsewhere, in this folder:   ray job submit --working-dir . -- python run.py

The nodes ask for:
    worker:0-1, ps:0-1  1 CPU, 604.0 MB of memory
"""

from pathlib import Path

from placer.command import main

main(
    [
        "launch",
        str(Path(__file__).parent / "build"),
        "--on=ray",
        "--option=address=auto",
        "--option=cpus=1",
        "--option=strategy=PACK",
        "--option=timeout=300",
        "--steps=100",
    ]
)
