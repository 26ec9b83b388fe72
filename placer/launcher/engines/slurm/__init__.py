"""Slurm: one batch script, with a group of a heterogeneous job for each kind of node.

The folder of a job must be on a file system that all machines share. It contains `job.sh`
for `sbatch`, `node.sh` for each task, the build and the key. The launcher has no pipe to
a queued job, so it follows files: nodes write their events, logs and exit statuses to the
subfolder `job-ID`.
"""

from placer.launcher.engines.slurm.engine import OPTIONS, submit
from placer.launcher.engines.slurm.following import watch
from placer.launcher.engines.slurm.scripts import write

__all__ = ["OPTIONS", "submit", "watch", "write"]
