"""Slurm: one batch script, with a group of a heterogeneous job for each kind of node.

The folder of a job has `job.sh`, which `sbatch` takes, `node.sh`, which each task runs, the
build and the key. It must be on a file system that all machines share. Nodes write their
events, their logs and how they have ended to the folder `job-ID` in it, which is how the
launcher follows a job: a queue has no pipe to it.
"""

from placer.launcher.engines.slurm.engine import OPTIONS, submit
from placer.launcher.engines.slurm.following import watch
from placer.launcher.engines.slurm.scripts import write

__all__ = ["OPTIONS", "submit", "watch", "write"]
