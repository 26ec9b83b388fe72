#!/bin/bash
# One node of wide_deep, which a task of job.sh runs. Written by placer.
nodes=(worker:0 worker:1 heter:0 ps:0)
node=${nodes[SLURM_PROCID]:-task-$SLURM_PROCID}
name=$PLACER_JOB_FOLDER/${node/:/-}
trap : INT TERM HUP USR1 # the node decides what a signal does
export PYTHONHASHSEED=0
if ! {
  module load cuda
} >"$name.log" 2>&1; then
  echo "error: --option setup has failed: $(tail -n 1 "$name.log")" >>"$name.log"
  echo "1 $SLURMD_NODENAME" >"$name.new" && mv "$name.new" "$name.ended"
  exit 1
fi
python3 -P -u -X faulthandler -m placer.command run build --node auto \
  --base-port "$PLACER_PORT" --events "$name.jsonl" --run-id "$PLACER_RUN_ID" '--checkpoint=/scratch/ada/wide deep' --restarts=3 --data /data/rows >>"$name.log" 2>&1
status=$?
echo "$status $SLURMD_NODENAME" >"$name.new" && mv "$name.new" "$name.ended"
exit "$status"
