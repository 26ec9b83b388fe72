#!/bin/bash
# digits: worker:0-1, ps:0-1. Written by placer. In this folder, which all machines
# must share, `sbatch job.sh` submits it, and `scancel JOB` ends it. Its result is in
# job-JOB/worker-0.log, and its steps, as JSON, in job-JOB/worker-0.jsonl.
#SBATCH --job-name=digits
#SBATCH --output=job-%j.log
# worker:0-1
#SBATCH --partition=long
#SBATCH --time=1-0:00:00
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=288M
#SBATCH --no-requeue
#SBATCH hetjob
# ps:0-1
#SBATCH --job-name=digits
#SBATCH --partition=long
#SBATCH --time=1-0:00:00
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=288M
#SBATCH --no-requeue

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
if [[ ${SLURM_RESTART_COUNT:-0} != 0 ]]; then
  fail "Slurm has started this job again: submit a new one (--resume continues a run)"
fi
export PLACER_JOB_FOLDER=$PWD/job-$SLURM_JOB_ID
if (($#)); then # by placer launch, which creates the folder once it follows the job
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
export PLACER_PORT=$((20000 + SLURM_JOB_ID * 16 % 11984))
# Addresses of machines, which can differ from their names.
lists=$(env | sed -nE 's/^SLURM_JOB_NODELIST(_HET_GROUP_[0-9]+)?=//p' | paste -sd, -)
PLACER_SLURM_ADDRESSES=$(scontrol --oneliner show node "$lists" |
  sed -nE 's/^NodeName=([^ ]+).* NodeAddr=([^ ]+).*/\1=\2/p' | sort -u | paste -sd, -)
export PLACER_SLURM_ADDRESSES
options=(--kill-on-bad-exit=1 --distribution=block --export=ALL --chdir="$PWD")
status=0
srun "${options[@]}" --cpus-per-task=2 bash node.sh : \
  "${options[@]}" --cpus-per-task=2 bash node.sh || status=$?
if [[ $status != 0 ]] && ! (($#)); then # the launcher names them itself
  echo "the logs of the nodes are in $PLACER_JOB_FOLDER" >&2
fi
echo "$status" >"$PLACER_JOB_FOLDER/ended" || true # it may have been removed
exit "$status"
