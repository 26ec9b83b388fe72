"""Runs Slurm's commands, which speak with its controller."""

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
"""Seconds in which a command of Slurm has to answer."""
_PREFIXES: Final = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SRUN_")
_WHERE: Final = ("SLURM_CONF", "SLURM_JWT")
"""What says which Slurm it is, and who asks."""
_DEFAULTS: Final = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CLUSTERS": "clusters",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
    "SLURM_CLUSTERS": "clusters",
}
"""Where users have defaults for options of sbatch. It would follow them rather than a batch
script."""


def run(
    command: Sequence[str], folder: Path | None = None, *, set_by: Collection[str] = ()
) -> str:
    """Run a command of Slurm, and return what it prints. Ctrl-C does not end it.

    `set_by` are the options of sbatch that its script sets. Raises PlacerError if there is
    no such command, RunError if it fails, or does not answer.
    """
    try:
        environment = clean_environment(os.environ, set_by)
        done = run_command(command, TIMEOUT, environment, folder)
    except FileNotFoundError:
        raise PlacerError(
            f"there is no '{command[0]}' on this machine",
            hint="run this where jobs are submitted to Slurm; --write DIR only writes"
            " the files of the job",
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
    """Return an environment without the variables that Slurm's commands take for their
    options: those of a job or a shell of Slurm in which the launcher runs, which the new
    job would inherit, and the user's own ones that would change what is printed.

    The user's defaults for sbatch stay, but for the options that its script sets.
    """
    kept = {name for name, option in _DEFAULTS.items() if option not in set_by}
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_PREFIXES) or name in kept or name in _WHERE
    }
