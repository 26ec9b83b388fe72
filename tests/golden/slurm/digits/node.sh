#!/bin/bash
# One node of digits, which a task of job.sh runs. Written by placer.
nodes=(worker:0 worker:1 ps:0 ps:1)
node=${nodes[SLURM_PROCID]:-task-$SLURM_PROCID}
name=$PLACER_JOB_FOLDER/${node/:/-}
trap : INT TERM HUP USR1 # the node decides what a signal does
export PYTHONHASHSEED=0
/opt/placer/bin/python -P -u -X faulthandler -m placer.command run build --node auto \
  --base-port "$PLACER_PORT" --events "$name.jsonl" --steps=100 --data /data/rows >>"$name.log" 2>&1
status=$?
echo "$status $SLURMD_NODENAME" >"$name.new" && mv "$name.new" "$name.ended"
exit "$status"
