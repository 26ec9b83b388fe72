#!/bin/bash
# wide_deep: worker:0-1, heter:0, ps:0. Written by placer. In this folder, which all machines
# must share, `sbatch job.sh` submits it, and `scancel JOB` ends it.
#SBATCH --job-name=wide_deep
#SBATCH --output=job-%j.log
# worker:0-1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2048M
#SBATCH -C a100 --comment='a run' --exclusive
#SBATCH hetjob
# heter:0
#SBATCH --job-name=wide_deep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2048M
#SBATCH --gpus-per-task=1
#SBATCH -C a100 --comment='a run' --exclusive
#SBATCH hetjob
# ps:0
#SBATCH --job-name=wide_deep
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2048M
#SBATCH -C a100 --comment='a run' --exclusive

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
export PLACER_PORT=21000
# Addresses of machines, which need not be their names.
lists=$(env | sed -nE 's/^SLURM_JOB_NODELIST(_HET_GROUP_[0-9]+)?=//p' | paste -sd, -)
PLACER_SLURM_ADDRESSES=$(scontrol --oneliner show node "$lists" |
  sed -nE 's/^NodeName=([^ ]+).* NodeAddr=([^ ]+).*/\1=\2/p' | sort -u | paste -sd, -)
export PLACER_SLURM_ADDRESSES
mkdir -p "$PLACER_JOB_FOLDER"
srun --kill-on-bad-exit=1 --distribution=block bash node.sh : bash node.sh : bash node.sh || status=$?
echo "${status:-0}" >"$PLACER_JOB_FOLDER/ended"
exit "${status:-0}"
