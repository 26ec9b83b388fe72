#!/bin/bash
# wide_deep: worker:0-1, heter:0, ps:0. Written by placer. In this folder, which all machines
# must share, `sbatch job.sh` submits it, and `scancel JOB` ends it. Its result is in
# job-JOB/worker-0.log, and its steps, as JSON, in job-JOB/worker-0.jsonl.
#SBATCH --job-name=wide_deep
#SBATCH --output=job-%j.log
# worker:0-1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2048M
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH -C a100 --comment='a run' --exclusive
#SBATCH hetjob
# heter:0
#SBATCH --job-name=wide_deep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2048M
#SBATCH --gpus-per-task=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH -C a100 --comment='a run' --exclusive
#SBATCH hetjob
# ps:0
#SBATCH --job-name=wide_deep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2048M
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH -C a100 --comment='a run' --exclusive

set -euo pipefail
fail() {
  echo "error: $1" >&2
  exit 1
}
cd "$SLURM_SUBMIT_DIR"
# NFS may answer from a cache up to a minute old, except for folders changed on this machine.
look_again() {
  touch -c . build 2>/dev/null || true
}
look_again
for file in build/plan.json node.sh run.key; do
  [[ -r $file ]] || fail "$PWD/$file does not exist: submit the job in its folder"
done
[[ $(sha256sum <build/plan.json) == "SHA256  -" ]] ||
  fail "$PWD has the build of another job: give each job a separate folder"
start=${SLURM_RESTART_COUNT:-0} # how often Slurm has started this job again
folder_of() {
  if (($1)); then echo "$PWD/job-$SLURM_JOB_ID-$1"; else echo "$PWD/job-$SLURM_JOB_ID"; fi
}
PLACER_JOB_FOLDER=$(folder_of "$start")
export PLACER_JOB_FOLDER PLACER_RUN_ID=0123456789abcdef-$SLURM_JOB_ID
if (($# && !start)); then # by placer launch, which creates the folder once it follows the job
  for ((i = 0; i < 600; i++)); do
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
export PLACER_PORT=21000
# Addresses of machines, which can differ from their names.
lists=$(env | sed -nE 's/^SLURM_JOB_NODELIST(_HET_GROUP_[0-9]+)?=//p' | paste -sd, -)
PLACER_SLURM_ADDRESSES=$(scontrol --oneliner show node "$lists" |
  sed -nE 's/^NodeName=([^ ]+).* NodeAddr=([^ ]+).*/\1=\2/p' | sort -u | paste -sd, -)
export PLACER_SLURM_ADDRESSES
if ((start)); then # End tasks of the last start, which other groups may still run.
  jobs=$(env | sed -nE 's/^SLURM_JOB_ID(_HET_GROUP_[0-9]+)?=//p' | sort -u | paste -sd, -)
  for ((i = 0; i < 400; i++)); do
    steps=$(squeue --steps --noheader --format=%i --jobs="$jobs" |
      sed -nE 's/^ *([0-9]+\.[0-9]+) *$/\1/p') || true
    [[ -n $steps ]] || break
    scancel $steps || true
    sleep 1
  done
  [[ -z $steps ]] || fail "tasks of the last start still run: $steps"
fi
options=(--kill-on-bad-exit=1 --distribution=block --export=ALL --chdir="$PWD")
status=0
srun "${options[@]}" --cpus-per-task=4 bash node.sh : \
  "${options[@]}" --cpus-per-task=4 --gpus-per-task=1 bash node.sh : \
  "${options[@]}" --cpus-per-task=4 bash node.sh || status=$?
is_lost() { # whether a task was lost, and nothing has ended the run
  touch -c "$PLACER_JOB_FOLDER" 2>/dev/null || true
  local ended asked
  ended=$(cat "$PLACER_JOB_FOLDER"/*.ended 2>/dev/null | cut -d ' ' -f 1)
  # A failure ends the run, or the command of the node does not work.
  ! grep -qxE '1|2|126|127' <<<"$ended" || return 1
  # The run has a result.
  ! grep -qs '^0 ' "$PLACER_JOB_FOLDER/worker-0.ended" || return 1
  # A signal to all nodes, which scancel or a time limit has sent, ends the run.
  asked=$(grep -cxE '0|129|130|143' <<<"$ended" || true)
  ((asked < 4)) || return 1
  # Somebody has cancelled the job, or Slurm itself starts it again.
  [[ $(scontrol --oneliner show job "$SLURM_JOB_ID" | grep -c JobState=RUNNING) == 3 ]]
}
is_stuck() { # whether none of the last 4 starts has begun to train
  local i
  ((start >= 3)) || return 1
  for ((i = start; i >= start - 3; i--)); do
    ! grep -qs '^{"event": "start"' "$(folder_of "$i")/worker-0.jsonl" || return 1
  done
}
if [[ $status != 0 ]] && is_lost; then
  if is_stuck; then
    echo "error: 4 starts of the job in a row have lost a task before they trained" >&2
  else
    echo "a task was lost: Slurm starts this job again" >&2
    touch "$PLACER_JOB_FOLDER/requeued"
    ! scontrol requeue "$SLURM_JOB_ID" || exit "$status"
  fi
fi
if [[ $status != 0 ]] && ! (($#)); then # the launcher names them itself
  echo "the logs of the nodes are in $PLACER_JOB_FOLDER" >&2
fi
echo "$status" >"$PLACER_JOB_FOLDER/ended" || true # it may have been removed
exit "$status"
