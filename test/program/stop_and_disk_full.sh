#!/usr/bin/env bash
# Tests that SIGTERM saves and exits with 143, and that a full disk loses only the checkpoint that is being written.
# Usage: stop_and_disk_full.sh LEHR
set -euo pipefail
lehr=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Not a function: the background process must be the program itself, so that the signal reaches it.
run=("$lehr" train recipe/quickstart.toml --job.dump_folder="$work/run" --metrics.measure_peak=false
     --metrics.enable_tensorboard=false --validation.enable=false --lr_scheduler.warmup_steps=0)

"${run[@]}" --training.steps=100000 --checkpoint.interval=10 2>"$work/log" & pid=$!
until compgen -G "$work/run/checkpoints/step-*" >/dev/null; do sleep 0.1; done
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
[ "$code" = 143 ] || { echo "expected exit code 143, found $code"; cat "$work/log"; exit 1; }
step=$(ls "$work/run/checkpoints" | sed 's/step-//' | sort -n | tail -1)
logged=$(tail -1 "$work/run/metrics.jsonl" | grep -oE '"step":[0-9]+' | cut -d: -f2)
[ "$step" = "$logged" ] || { echo "step $logged was done, the newest checkpoint is of step $step"; exit 1; }

# A limit of the file size stands in for a full disk: writes fail in the same way, and it needs no privileges.
( ulimit -f 2000; "${run[@]}" --training.steps=$((step + 6)) --checkpoint.interval=2 --lr_scheduler.decay_ratio=0.0 \
    --checkpoint.allow_changes='["steps"]' --sample.max_new_tokens=1 2>"$work/log" ) || code=$?
grep -q "was not saved" "$work/log" || { echo "no message about the failed save:"; cat "$work/log"; exit 1; }
logged=$(tail -1 "$work/run/metrics.jsonl" | grep -oE '"step":[0-9]+' | cut -d: -f2)
[ "$logged" = "$((step + 6))" ] || { echo "training did not go on: last step $logged"; cat "$work/log"; exit 1; }
ls "$work/run/checkpoints" | grep -qx "step-$step" || { echo "the last good checkpoint is gone"; exit 1; }
if compgen -G "$work/run/checkpoints/.*step-*" >/dev/null; then echo "a temporary folder was left"; exit 1; fi
"$lehr" inspect "$work/run/checkpoints/step-$step" --no-tensors >/dev/null
grep "was not saved" "$work/log" | head -1
echo "SIGTERM exits with 143 and has saved; a failed save leaves the last checkpoint, and training goes on"
