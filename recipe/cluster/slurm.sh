#!/bin/bash
# A training run on 4 machines with 8 GPUs each, under SLURM: sbatch recipe/cluster/slurm.sh run.toml
#
# torchrun starts the ranks of a machine, and starts all ranks again when one of them fails. If a machine fails, SLURM puts the
# job back into the queue, and the run continues from its newest checkpoint. Two minutes before the time limit every rank gets
# SIGTERM, saves after its step, and ends, within the 30 seconds that torchrun allows; submit the job again, or chain jobs with
# --dependency=singleton.
#SBATCH --job-name=lehr
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node=8 --max-restarts=3 \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$first:29500" \
  --no-python lehr train "$@"
