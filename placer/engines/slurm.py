"""Slurm: one batch script, with a group of a heterogeneous job for each kind of node.

The folder of a job has `job.sh`, which `sbatch` takes, `node.sh`, which each task runs, the
build and the key. It must be on a file system that all machines share. Nodes write their
events, their logs and how they have ended to the folder `job-ID` in it, which is how the
launcher follows a job: a queue has no pipe to it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from placer.engines.engine import (
    EngineOption,
    JobEvent,
    JobFile,
    JobFiles,
    JobNote,
    JobRequest,
    Needs,
    NodeEnded,
    NodeLines,
)
from placer.engines.tail import Tail
from placer.errors import PlacerError, RunError
from placer.node_kinds import NodeId
from placer.place.ids import format_nodes
from placer.runtime.run.signals import STOP_SIGNAL

OPTIONS: Final = (
    EngineOption("partition", "str", None, "The partition of the job."),
    EngineOption("time", "str", None, "The limit of its time, such as 1-12:00:00."),
    EngineOption("account", "str", None, "The account that it is charged to."),
    EngineOption("cpus", "int", 2, "The CPUs of each node."),
    EngineOption("memory", "size", None, "The memory of each node, not the plan's."),
    EngineOption("port", "int", None, "The port of the first node, not the job's own."),
    EngineOption(
        "python", "str", None, "The Python that has placer; default: this one."
    ),
    EngineOption("setup", "str", None, "A shell command for each node before placer."),
    EngineOption("sbatch", "str", None, "More options of sbatch for each group."),
)
POLL: Final = 0.25
"""Seconds between two looks at the files of a job."""
FILES: Final = 50
"""Nodes of a job up to which this is enough; their files are on a shared file system."""
ASK: Final = 5.0
"""Seconds between two questions to Slurm's controller."""
TIMEOUT: Final = 60.0
"""Seconds in which a command of Slurm has to answer."""
SILENT: Final = 600.0
"""Seconds without an answer of Slurm's controller after which a job is given up."""
END_GRACE: Final = 10.0
"""Seconds in which files appear that a job has written, on a shared file system."""
_LOW_PORT: Final = 20000
_PORTS: Final = 12000
"""Jobs listen in this range, below that of outgoing connections; each at ports of its own,
by its number."""
_ENDED: Final = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
"""The states of a job that is over."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of Slurm; see `placer.engines.engine.Job`.

    Attributes:
        number: its number, as scancel takes it.
        folder: the folder with what its nodes write.
        nodes: the names of its nodes in the order of the tasks.
    """

    number: str
    folder: Path
    nodes: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"Slurm job {self.number}"

    @property
    def cancel_command(self) -> str:
        return f"scancel {self.number}"

    def stop(self) -> None:
        _run(["scancel", f"--signal={STOP_SIGNAL.name}", self.number])

    def cancel(self) -> None:
        _run(["scancel", self.number])


def write(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    """Return the files of a job; see `Engine.write`."""
    _check_options(request, options)
    return {
        "job.sh": JobFile(_job_script(request, options)),
        "node.sh": JobFile(_node_script(request, options)),
        "run.key": JobFile(request.key.secret.hex() + "\n", private=True),
        **{f"build/{path}": JobFile(data) for path, data in request.files.items()},
    }


def _check_options(request: JobRequest, options: Mapping[str, Any]) -> None:
    """Raise PlacerError for values that no job can have."""
    if options["cpus"] < 1:
        raise PlacerError("slurm: 'cpus' must be at least 1")
    most = 65536 - len(request.needs)
    if options["port"] is not None and not 0 < options["port"] <= most:
        raise PlacerError(
            f"slurm: 'port' must be from 1 to {most}: each node has its own"
        )


def _job_script(request: JobRequest, options: Mapping[str, Any]) -> str:
    """Return the batch script."""
    groups = [
        [*names]
        for _, names in groupby(
            request.needs, lambda name: (NodeId(name).kind, request.needs[name].gpus)
        )
    ]
    nodes = format_nodes(request.needs)
    common = {
        "partition": options["partition"],
        "account": options["account"],
        "time": options["time"],
    }
    lines = [
        "#!/bin/bash",
        f"# {request.name}: {nodes}. Written by placer. In this folder, which all machines",
        "# must share, `sbatch job.sh` submits it, and `scancel JOB` ends it.",
        f"#SBATCH --job-name={request.name}",
        "#SBATCH --output=job-%j.log",
    ]
    for i, names in enumerate(groups):
        if i:
            lines.append("#SBATCH hetjob")
        lines.append(f"# {format_nodes(names)}")
        if i:
            lines.append(f"#SBATCH --job-name={request.name}")
        needs = [request.needs[name] for name in names]
        given = {**common, **_group(needs, options)}
        lines += [f"#SBATCH --{k}={v}" for k, v in given.items() if v is not None]
        if options["sbatch"]:
            lines.append(f"#SBATCH {options['sbatch']}")
    steps = " : ".join(["bash node.sh"] * len(groups))
    stride = -(-len(request.needs) // 16) * 16
    port = f"$(({_LOW_PORT} + SLURM_JOB_ID * {stride} % {_PORTS - stride}))"
    if options["port"] is not None:
        port = str(options["port"])
    lines += f"""
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
for file in build/plan.json node.sh run.key; do
  if [[ ! -r $file ]]; then
    echo "error: there is no $PWD/$file: submit the job in its folder" >&2
    exit 1
  fi
done
# sbatch passes on the environment in which it was called.
unset PLACER_NODE PLACER_KIND PLACER_INDEX PLACER_ENDPOINTS
export PLACER_JOB_FOLDER=$PWD/job-$SLURM_JOB_ID
export PLACER_KEY_FILE=$PWD/run.key
export PLACER_PORT={port}
# Addresses of machines, which need not be their names.
lists=$(env | sed -nE 's/^SLURM_JOB_NODELIST(_HET_GROUP_[0-9]+)?=//p' | paste -sd, -)
PLACER_SLURM_ADDRESSES=$(scontrol --oneliner show node "$lists" |
  sed -nE 's/^NodeName=([^ ]+).* NodeAddr=([^ ]+).*/\\1=\\2/p' | sort -u | paste -sd, -)
export PLACER_SLURM_ADDRESSES
mkdir -p "$PLACER_JOB_FOLDER"
srun --kill-on-bad-exit=1 --distribution=block {steps} || status=$?
echo "${{status:-0}}" >"$PLACER_JOB_FOLDER/ended"
exit "${{status:-0}}"
""".splitlines()
    return "\n".join(lines) + "\n"


def _group(needs: Sequence[Needs], options: Mapping[str, Any]) -> dict[str, object]:
    """Return the options of sbatch for the nodes of a group."""
    memory = options["memory"] or max(each.memory for each in needs)
    cpus = options["cpus"]
    return {
        "ntasks": len(needs),
        "cpus-per-task": cpus,
        "mem-per-cpu": f"{-(-memory // (cpus << 20))}M",
        "gpus-per-task": needs[0].gpus or None,
    }


def _node_script(request: JobRequest, options: Mapping[str, Any]) -> str:
    """Return the script that each task runs."""
    python = shlex.quote(options["python"] or sys.executable)
    arguments = [*request.arguments]
    if request.data is not None:
        arguments += ["--data", str(request.data)]
    listed = "".join(f" {shlex.quote(each)}" for each in arguments)
    setup = f"{options['setup']}\n" if options["setup"] else ""
    nodes = " ".join(request.needs)
    return f"""#!/bin/bash
# One node of {request.name}, which a task of job.sh runs. Written by placer.
nodes=({nodes})
node=${{nodes[SLURM_PROCID]:-task-$SLURM_PROCID}}
name=$PLACER_JOB_FOLDER/${{node/:/-}}
trap : INT TERM HUP USR1 # the node decides what a signal does
export PYTHONHASHSEED=0
{setup}{python} -P -u -X faulthandler -m placer.command run build --node auto \\
  --base-port "$PLACER_PORT" --events "$name.jsonl"{listed} >"$name.log" 2>&1
status=$?
echo "$status $SLURMD_NODENAME" >"$name.new" && mv "$name.new" "$name.ended"
exit "$status"
"""


def submit(folder: Path, request: JobRequest, options: Mapping[str, Any]) -> SlurmJob:
    """Submit the job in a folder; see `Engine.submit`."""
    _check_files(request, options)
    answer = _run(["sbatch", "--parsable", "job.sh"], folder)
    number = answer.strip().partition(";")[0]
    if not number.isdecimal():
        raise RunError(f"sbatch has not told the number of the job: {answer!r}")
    return SlurmJob(number, folder / f"job-{number}", tuple(request.needs))


def _check_files(request: JobRequest, options: Mapping[str, Any]) -> None:
    """Raise PlacerError if something is missing, before the job waits for hours."""
    python = options["python"] or sys.executable
    if not options["setup"] and shutil.which(python) is None:
        raise PlacerError(
            f"there is no Python '{python}' on this machine",
            hint="machines of Slurm share their files; --option python=PATH names it",
        )
    folders = {flag: path.parent for flag, path in request.writes.items()}
    if request.data is not None:
        folders["--data"] = request.data
    for flag, folder in folders.items():
        if not folder.is_dir():
            raise _missing(f"folder '{folder}'", flag)
    for flag, path in request.reads.items():
        if not path.exists():  # or a folder, of a checkpoint
            raise _missing(f"file '{path}'", flag)


def _missing(what: str, flag: str) -> PlacerError:
    return PlacerError(
        f"there is no {what} for {flag} on this machine",
        hint="machines of Slurm share their files",
    )


def watch(job: SlurmJob) -> Iterator[JobEvent]:
    """Follow a job by its files, and by what Slurm says; see `Engine.watch`."""
    tails = {name: Tail(_path(job, name, "jsonl")) for name in job.nodes}
    left = [*job.nodes]
    asked, answered, note = -ASK, time.monotonic(), ""
    state, has_failed = "", False
    over: float | None = None
    while left and (over is None or time.monotonic() - over < END_GRACE):
        # Slurm ends all nodes after the first that was killed: its end is there when the
        # signals to the others are read.
        lines = {name: tails[name].read() for name in left}
        ended = {name: end for name in left if (end := _read_end(job, name))}
        has_failed |= any(end.status != 0 for end in ended.values())
        if len(ended) == len(left) and not has_failed:
            _wait_for_script(job)
        for name in sorted(left, key=lambda name: name not in ended):
            last = tails[name].read() if name in ended else []
            if found := lines[name] + last:
                yield NodeLines(name, found)
            if name in ended:
                yield ended[name]
        left = [name for name in left if name not in ended]
        now = time.monotonic()
        if left and over is None and now - asked >= ASK:
            asked = now
            try:
                state, reason = _ask(job)
                answered = now
            except RunError as error:
                if now - answered > SILENT:
                    raise RunError(
                        f"{job.title} cannot be followed any more: {error}",
                        hint=f"it goes on; this ends it: {job.cancel_command}",
                    ) from error
                reason = f"it is not known: {error}"
            if state in _ENDED or not state:
                over = now
            elif state == "PENDING" and reason not in ("None", note):
                note = reason
                yield JobNote(f"{job.title} waits: {reason}")
        if over is None and _ended_path(job).exists():
            over = now
        time.sleep(max(POLL, POLL * len(left) / FILES))
    why = f"Slurm says that {job.title} is {state or 'unknown'}"
    for name in left:
        yield NodeEnded(name, None, why + _last_line(job))


def _wait_for_script(job: SlurmJob) -> None:
    """Wait until the batch script needs the folder of a job no more: the launcher may
    remove it after a successful run, and the job would have failed."""
    until = time.monotonic() + END_GRACE
    while not _ended_path(job).exists() and time.monotonic() < until:
        time.sleep(POLL)


def _ended_path(job: SlurmJob) -> Path:
    """Return the file that the batch script writes at its end."""
    return job.folder / "ended"


def _path(job: SlurmJob, node: str, suffix: str) -> Path:
    return job.folder / f"{node.replace(':', '-')}.{suffix}"


def _read_end(job: SlurmJob, node: str) -> NodeEnded | None:
    """Return how a node has ended, once node.sh has written it."""
    try:
        text = _path(job, node, "ended").read_text()
    except OSError:
        return None
    status, _, host = text.strip().partition(" ")
    number = int(status) if status.isdecimal() else None
    if number is not None and number > 128:  # of a shell: by a signal
        number = 128 - number
    return NodeEnded(node, number, host=host)


def _ask(job: SlurmJob) -> tuple[str, str]:
    """Return the state of a job, empty if Slurm does not know it any more, and its
    reason."""
    command = ["squeue", "--noheader", "--states=all", "--format=%T|%r"]
    try:
        answer = _run([*command, f"--jobs={job.number}"])
    except RunError as error:
        if "Invalid job id" in str(error):
            return "", ""
        raise
    states = [line.partition("|") for line in answer.splitlines() if line.strip()]
    if not states:
        return "", ""
    # A heterogeneous job is over when all its parts are.
    state, _, reason = next((s for s in states if s[0] not in _ENDED), states[0])
    return state, reason


def _last_line(job: SlurmJob) -> str:
    """Return the last line of the log of the batch script, as the end of a sentence."""
    try:
        text = (job.folder.parent / f"{job.folder.name}.log").read_text(
            errors="replace"
        )
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:400]}" if lines else ""


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a command of Slurm, and return what it prints."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise PlacerError(
            f"there is no '{command[0]}' on this machine",
            hint="run this where jobs are submitted to Slurm; --write DIR only writes"
            " the files of the job",
        ) from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} has not answered in {TIMEOUT:g} s") from None
    if done.returncode:
        prefix = re.compile(rf"^{command[0]}: (error: )?")
        lines = [prefix.sub("", line) for line in done.stderr.splitlines() if line]
        said = "; ".join(lines) or f"status {done.returncode}"
        raise RunError(f"{command[0]} failed: {said}")
    return done.stdout
