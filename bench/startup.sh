#!/usr/bin/env bash
# Prints the wall time in seconds of a process that runs one optimizer step of the quickstart's model; five runs.
# Usage: bench/startup.sh [LEHR]
set -euo pipefail
lehr=${1:-build/lehr}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
TIMEFORMAT=%R
for i in 1 2 3 4 5; do
  time "$lehr" train recipe/quickstart.toml --quiet --job.dump_folder="$folder/$i" --training.steps=1 \
    --lr_scheduler.warmup_steps=0 --lr_scheduler.decay_ratio=0.0 --validation.enable=false --checkpoint.enable=false \
    --sample.max_new_tokens=1
done
