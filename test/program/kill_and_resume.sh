#!/usr/bin/env bash
# Kills training at random moments and resumes it, many times: the result must equal an uninterrupted run bit for bit.
# First with a whole model, then with adapters. Usage: kill_and_resume.sh LEHR [KILLS], by default 10 kills, or 20 with
# LEHR_ALL_MESHES=1.
set -euo pipefail
lehr=$1
kills=${2:-${LEHR_KILLS:-$([ -n "${LEHR_ALL_MESHES:-}" ] && echo 20 || echo 10)}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=20261121

settings=(--model.args.hidden_size=48 --model.args.intermediate_size=96 --model.args.head_dim=16
          --model.args.vocab_size=16384 --training.global_batch_size=4 --training.steps=150 --lr_scheduler.warmup_steps=5
          --checkpoint.interval=1 --checkpoint.keep_latest_k=2 --validation.enable=true --validation.freq=25
          --validation.steps=2)

# Times and memory differ between runs; losses do not.
learned() { grep -oE '"(step|loss|grad_norm|lr|num_tokens|validation_loss)":[^,}]*' "$1/metrics.jsonl"; }

# survives NAME KILLS WEIGHTS [OPTION...]: kills and resumes a run with these options, and compares the result.
survives() {
  local name=$1 kills=$2 weights=$3 in_a_write=0 code=0 pid
  shift 3
  # An array, not a function: the background process must be the program itself, so that the signal reaches it.
  local train=("$lehr" train test/program/tiny.toml --quiet "${settings[@]}" "$@")
  "${train[@]}" --job.dump_folder="$work/$name"

  for ((i = 1; i <= kills; ++i)); do
    "${train[@]}" --job.dump_folder="$work/$name-killed" & pid=$!
    # From before the first step to well into the run; start-up alone takes about half a second.
    sleep "$(printf '0.%03d' $((350 + RANDOM % 600)))"
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    if compgen -G "$work/$name-killed/checkpoints/.*step-*" >/dev/null; then in_a_write=$((in_a_write + 1)); fi
  done
  # SIGTERM saves, and the exit code shows it.
  "${train[@]}" --job.dump_folder="$work/$name-killed" & pid=$!
  sleep 0.8
  kill -TERM "$pid" 2>/dev/null || true
  wait "$pid" || code=$?
  [ "$code" = 143 ] || [ "$code" = 0 ] || { echo "SIGTERM: expected exit code 143, found $code"; exit 1; }
  "${train[@]}" --job.dump_folder="$work/$name-killed"

  for file in "$weights" optimizer.safetensors trainer.json; do
    cmp "$work/$name/checkpoints/step-150/$file" "$work/$name-killed/checkpoints/step-150/$file"
  done
  diff <(learned "$work/$name") <(learned "$work/$name-killed")
  echo "$name: $kills kills, $in_a_write of them inside a checkpoint write: weights, optimizer and logged losses are the" \
    "same bits"
}

survives whole "$kills" model.safetensors
survives adapters $(((kills + 3) / 4)) adapter_model.safetensors --peft.method=lora --peft.dropout=0.1 \
  --checkpoint.initial_load_path="$work/whole/checkpoints/step-150"
