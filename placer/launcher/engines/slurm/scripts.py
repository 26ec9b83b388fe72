"""Writes the files of a Slurm job: a batch script, and a script for each task."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, Final

from placer.errors import PlacerError
from placer.launcher.engines.engine import JobFile, JobFiles, JobRequest, Needs
from placer.launcher.engines.slurm.sbatch_options import set_options
from placer.launcher.guard import FINAL_STATUSES
from placer.place.ids import format_nodes
from placer.place.node_kinds import NodeId
from placer.plan.plan import FILE
from placer.runtime.process.interpreter import NODE_VARIABLES, interpreter

_LOW_PORT: Final = 20000
_PORTS: Final = 12000
"""The first port of the range for jobs, below the range of outgoing connections. The
number of a job selects its ports in this range."""
_FOLLOWED: Final = 60
"""Seconds after its start in which a job must be followed by its launcher, or it fails."""
_OLD_STEPS: Final = 400
"""Seconds in which the tasks of an earlier start must end. Slurm waits for an srun on a lost
machine, which took one minute with Slurm 22.05."""
REQUEUED: Final = "requeued"
"""The file that the batch script writes before it asks Slurm to start the job again."""


def write(request: JobRequest, options: Mapping[str, Any]) -> JobFiles:
    """Return the files of a job; see `Engine.write`."""
    _check_options(request, options)
    return {
        "job.sh": JobFile(_job_script(request, options), submits=True),
        "node.sh": JobFile(_node_script(request, options)),
        "run.key": JobFile(request.key.secret.hex() + "\n", private=True),
        **{f"build/{path}": JobFile(data) for path, data in request.files.items()},
    }


def _check_options(request: JobRequest, options: Mapping[str, Any]) -> None:
    if options["cpus"] < 1:
        raise PlacerError("slurm: 'cpus' must be at least 1")
    most = 65536 - len(request.needs)
    if options["port"] is not None and not 0 < options["port"] <= most:
        raise PlacerError(
            f"slurm: 'port' must be from 1 to {most}: each node uses one port"
        )
    set_options(options["sbatch"] or "")  # Raises an error for invalid options.


def _job_script(request: JobRequest, options: Mapping[str, Any]) -> str:
    groups = [
        [*names]
        for _, names in groupby(
            request.needs, lambda name: (NodeId(name).kind, request.needs[name].gpus)
        )
    ]
    nodes = format_nodes(request.needs)
    control = NodeId(next(iter(request.needs))).stem
    common = {
        "partition": options["partition"],
        "account": options["account"],
        "time": options["time"],
    }
    lines = [
        "#!/bin/bash",
        f"# {request.name}: {nodes}. Written by placer. In this folder, which all machines",
        "# must share, `sbatch job.sh` submits it, and `scancel JOB` ends it. Its result is in",
        f"# job-JOB/{control}.log, and its steps, as JSON, in job-JOB/{control}.jsonl.",
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
        # A started job appends to its log.
        starts = ["requeue", "open-mode=append"] if request.restarts else ["no-requeue"]
        lines += [f"#SBATCH --{each}" for each in starts]
        if options["sbatch"]:
            lines.append(f"#SBATCH {options['sbatch']}")
    steps = " : \\\n  ".join(
        _step(request.needs[names[0]], options) for names in groups
    )
    stride = -(-len(request.needs) // 16) * 16
    port = f"$(({_LOW_PORT} + SLURM_JOB_ID * {stride} % {_PORTS - stride}))"
    if options["port"] is not None:
        port = str(options["port"])
    plan = sha256(request.files[FILE]).hexdigest()
    waits = "(($# && !start))" if request.restarts else "(($#))"
    lines += f"""
set -euo pipefail
fail() {{
  echo "error: $1" >&2
  exit 1
}}
cd "$SLURM_SUBMIT_DIR"
# NFS may answer from a cache up to a minute old, except for folders changed on this machine.
look_again() {{
  touch -c . build 2>/dev/null || true
}}
look_again
for file in build/plan.json node.sh run.key; do
  [[ -r $file ]] || fail "$PWD/$file does not exist: submit the job in its folder"
done
[[ $(sha256sum <build/plan.json) == "{plan}  -" ]] ||
  fail "$PWD has the build of another job: give each job a separate folder"
{_first_start(request)}if {waits}; then # by placer launch, which creates the folder once it follows the job
  for ((i = 0; i < {10 * _FOLLOWED}; i++)); do
    [[ ! -d $PLACER_JOB_FOLDER ]] || break
    look_again
    sleep 0.1
  done
  [[ -d $PLACER_JOB_FOLDER ]] || fail "no launcher follows this job: $PLACER_JOB_FOLDER does not exist"
else
  mkdir "$PLACER_JOB_FOLDER"
fi
if (($#)) && [[ $(cat build/plan.json node.sh | sha256sum) != "$1  -" ]]; then
  fail "another job has replaced the files in $PWD: give each job a folder with --logs DIR"
fi
# sbatch passes on the environment in which it was called.
unset PLACER_NODE PLACER_KIND PLACER_INDEX PLACER_ENDPOINTS
unset SLURM_MEM_PER_NODE SLURM_MEM_PER_GPU SLURM_EXCLUSIVE
export PLACER_KEY_FILE=$PWD/run.key
export PLACER_PORT={port}
# Addresses of machines, which can differ from their names.
lists=$(env | sed -nE 's/^SLURM_JOB_NODELIST(_HET_GROUP_[0-9]+)?=//p' | paste -sd, -)
PLACER_SLURM_ADDRESSES=$(scontrol --oneliner show node "$lists" |
  sed -nE 's/^NodeName=([^ ]+).* NodeAddr=([^ ]+).*/\\1=\\2/p' | sort -u | paste -sd, -)
export PLACER_SLURM_ADDRESSES
{_end_steps(request)}options=(--kill-on-bad-exit=1 --distribution=block --export=ALL --chdir="$PWD")
status=0
srun {steps} || status=$?
{_requeue(request, len(groups))}if [[ $status != 0 ]] && ! (($#)); then # the launcher names them itself
  echo "the logs of the nodes are in $PLACER_JOB_FOLDER" >&2
fi
echo "$status" >"$PLACER_JOB_FOLDER/ended" || true # it may have been removed
exit "$status"
""".splitlines()
    return "\n".join(lines) + "\n"


def _first_start(request: JobRequest) -> str:
    """Return the lines of job.sh that choose the folder of a start of the job."""
    if not request.restarts:
        return """\
if [[ ${SLURM_RESTART_COUNT:-0} != 0 ]]; then
  fail "Slurm has started this job again: submit a new one (--resume continues a run)"
fi
export PLACER_JOB_FOLDER=$PWD/job-$SLURM_JOB_ID
"""
    return f"""\
start=${{SLURM_RESTART_COUNT:-0}} # how often Slurm has started this job again
folder_of() {{
  if (($1)); then echo "$PWD/job-$SLURM_JOB_ID-$1"; else echo "$PWD/job-$SLURM_JOB_ID"; fi
}}
PLACER_JOB_FOLDER=$(folder_of "$start")
export PLACER_JOB_FOLDER PLACER_RUN_ID={request.run_id}-$SLURM_JOB_ID
"""


def _end_steps(request: JobRequest) -> str:
    """Return the lines of job.sh that end the tasks of the last start. If the first machine is
    lost, Slurm starts only the first group again, and the tasks of others still run."""
    if not request.restarts:
        return ""
    return f"""\
if ((start)); then # End tasks of the last start, which other groups may still run.
  jobs=$(env | sed -nE 's/^SLURM_JOB_ID(_HET_GROUP_[0-9]+)?=//p' | sort -u | paste -sd, -)
  for ((i = 0; i < {_OLD_STEPS}; i++)); do
    steps=$(squeue --steps --noheader --format=%i --jobs="$jobs" |
      sed -nE 's/^ *([0-9]+\\.[0-9]+) *$/\\1/p') || true
    [[ -n $steps ]] || break
    scancel $steps || true
    sleep 1
  done
  [[ -z $steps ]] || fail "tasks of the last start still run: $steps"
fi
"""


def _requeue(request: JobRequest, groups: int) -> str:
    """Return the lines of job.sh that let Slurm start the job again if a task was lost."""
    if not request.restarts:
        return ""
    control, count = NodeId(next(iter(request.needs))).stem, len(request.needs)
    return f"""\
is_lost() {{ # whether a task was lost, and nothing has ended the run
  touch -c "$PLACER_JOB_FOLDER" 2>/dev/null || true
  local ended asked
  ended=$(cat "$PLACER_JOB_FOLDER"/*.ended 2>/dev/null | cut -d ' ' -f 1)
  # A failure ends the run, or the command of the node does not work.
  ! grep -qxE '{"|".join(map(str, FINAL_STATUSES))}' <<<"$ended" || return 1
  # The run has a result.
  ! grep -qs '^0 ' "$PLACER_JOB_FOLDER/{control}.ended" || return 1
  # A signal to all nodes, which scancel or a time limit has sent, ends the run.
  asked=$(grep -cxE '0|129|130|143' <<<"$ended" || true)
  ((asked < {count})) || return 1
  # Somebody has cancelled the job, or Slurm itself starts it again.
  [[ $(scontrol --oneliner show job "$SLURM_JOB_ID" | grep -c JobState=RUNNING) == {groups} ]]
}}
is_stuck() {{ # whether none of the last {request.restarts + 1} starts has begun to train
  local i
  ((start >= {request.restarts})) || return 1
  for ((i = start; i >= start - {request.restarts}; i--)); do
    ! grep -qs '^{{"event": "start"' "$(folder_of "$i")/{control}.jsonl" || return 1
  done
}}
if [[ $status != 0 ]] && is_lost; then
  if is_stuck; then
    echo "error: {request.restarts + 1} starts of the job in a row have lost a task before they trained" >&2
  else
    echo "a task was lost: Slurm starts this job again" >&2
    touch "$PLACER_JOB_FOLDER/{REQUEUED}"
    ! scontrol requeue "$SLURM_JOB_ID" || exit "$status"
  fi
fi
"""


def _group(needs: Sequence[Needs], options: Mapping[str, Any]) -> dict[str, object]:
    memory = options["memory"] or max(each.memory for each in needs)
    cpus = options["cpus"]
    return {
        "ntasks": len(needs),
        "cpus-per-task": cpus,
        "mem-per-cpu": f"{-(-memory // (cpus << 20))}M",
        "gpus-per-task": needs[0].gpus or None,
    }


def _step(needs: Needs, options: Mapping[str, Any]) -> str:
    """Return the arguments of srun, which inherits no CPUs or GPUs from the job's groups."""
    gpus = f" --gpus-per-task={needs.gpus}" if needs.gpus else ""
    return f'"${{options[@]}}" --cpus-per-task={options["cpus"]}{gpus} bash node.sh'


def _node_script(request: JobRequest, options: Mapping[str, Any]) -> str:
    command = shlex.join(interpreter(python=options["python"]))
    variables = " ".join(f"{name}={value}" for name, value in NODE_VARIABLES.items())
    arguments = [*request.arguments]
    if request.data is not None:
        arguments += ["--data", str(request.data)]
    listed = "".join(f" {shlex.quote(each)}" for each in arguments)
    run_id = ' --run-id "$PLACER_RUN_ID"' if request.restarts else ""
    setup = ""
    if options["setup"]:
        setup = f"""if ! {{
  {options["setup"]}
}} >"$name.log" 2>&1; then
  echo "error: --option setup has failed: $(tail -n 1 "$name.log")" >>"$name.log"
  echo "1 $SLURMD_NODENAME" >"$name.new" && mv "$name.new" "$name.ended"
  exit 1
fi
"""
    nodes = " ".join(request.needs)
    return f"""#!/bin/bash
# One node of {request.name}, which a task of job.sh runs. Written by placer.
nodes=({nodes})
node=${{nodes[SLURM_PROCID]:-task-$SLURM_PROCID}}
name=$PLACER_JOB_FOLDER/${{node/:/-}}
trap : INT TERM HUP USR1 # the node decides what a signal does
export {variables}
{setup}{command} run build --node auto \\
  --base-port "$PLACER_PORT" --events "$name.jsonl"{run_id}{listed} >>"$name.log" 2>&1
status=$?
echo "$status $SLURMD_NODENAME" >"$name.new" && mv "$name.new" "$name.ended"
exit "$status"
"""
