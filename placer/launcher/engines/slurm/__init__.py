"""Slurm: one batch script, with a group of a heterogeneous job for each kind of node.

The folder of a job must be on a file system that all machines share. It contains `job.sh`
for `sbatch`, `node.sh` for each task, the build and the key. The launcher has no pipe to
a queued job, so it follows files: nodes write their events, logs and exit statuses to the
subfolder `job-ID`. With `--restarts`, `job.sh` lets Slurm start the job again after the loss
of a task. Each of these starts has a subfolder `job-ID-COUNT`.
"""

from typing import Final

from placer.launcher.engines.slurm.engine import OPTIONS, submit
from placer.launcher.engines.slurm.scripts import write
from placer.launcher.engines.slurm.starts import watch

RESTARTS: Final = True
__all__ = ["OPTIONS", "RESTARTS", "submit", "watch", "write"]
