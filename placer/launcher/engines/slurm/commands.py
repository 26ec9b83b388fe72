"""Runs the commands of Slurm."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from placer.errors import PlacerError, RunError
from placer.launcher.child import run_command
from placer.launcher.engines.hints import hint_of
from placer.launcher.engines.said import quoting

TIMEOUT: Final = 60.0
"""Seconds in which a command of Slurm must answer."""
_PREFIXES: Final = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SRUN_")
_WHERE: Final = ("SLURM_CONF", "SLURM_JWT")
"""Variables that name the Slurm cluster and authenticate the user."""
_DEFAULTS: Final = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CLUSTERS": "clusters",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
    "SLURM_CLUSTERS": "clusters",
}
"""Variables with users' defaults for options of sbatch. sbatch prefers these variables
to the options in a batch script."""


def run(
    command: Sequence[str], folder: Path | None = None, *, set_by: Collection[str] = ()
) -> str:
    """Run a command of Slurm and return its output. Ctrl-C does not end the command.

    Args:
        command: the command and its arguments.
        folder: its working folder.
        set_by: the options of sbatch that the batch script sets.

    Raises:
        PlacerError: if the command does not exist.
        RunError: if the command fails or does not answer.
    """
    try:
        environment = clean_environment(os.environ, set_by)
        done = run_command(command, TIMEOUT, environment, folder)
    except FileNotFoundError:
        raise PlacerError(
            f"the command '{command[0]}' does not exist on this machine",
            hint="run placer where jobs are submitted to Slurm; --write DIR only "
            "writes the files of the job",
        ) from None
    if done.status is None:
        said = f"{command[0]} has not answered in {TIMEOUT:g} s"
        raise RunError(said, hint=hint_of("Slurm", said))
    if done.status:
        said = done.stderr.decode(errors="replace").strip() or f"status {done.status}"
        hint = hint_of("Slurm", said)
        raise RunError(quoting(f"{command[0]} failed", said), hint=hint)
    return done.stdout.decode(errors="replace")


def clean_environment(
    environment: Mapping[str, str], set_by: Collection[str] = ()
) -> dict[str, str]:
    """Return an environment without variables that change the commands of Slurm.

    The launcher may run in a job of Slurm, whose variables the new job would inherit.
    Other variables would change the output of the commands. The user's defaults for
    sbatch stay, except for the options in `set_by`.
    """
    kept = {name for name, option in _DEFAULTS.items() if option not in set_by}
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_PREFIXES) or name in kept or name in _WHERE
    }
