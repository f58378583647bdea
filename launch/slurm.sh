#!/usr/bin/env bash
# Train on the GPUs of a Slurm cluster, with one process for each GPU. jax finds the processes by Slurm's variables.
#
#   export RUN_DIR=/shared/runs/mine RECIPE=configs/fr3e_qwen2.5_7b.yaml
#   launch/slurm.sh --dry-run [key=value ...]     # check the recipe and print what the job would run
#   sbatch --nodes=4 --gpus-per-node=8 --ntasks-per-node=8 launch/slurm.sh [key=value ...]
#
# RUN_DIR must be on a file system that all nodes share. Before the time limit Slurm sends SIGTERM, and the run saves
# and ends. The job then requeues itself until the run's budget is spent; with REQUEUE=0 it does not. Submitting the
# same command again also continues the run. RUN_DIR/logs has a log for each process and slurm-JOB.log. Compiled programs
# are shared in compilation_cache beside RUN_DIR (JAX_COMPILATION_CACHE_DIR: another folder). The job inherits the
# variables of the shell, HF_TOKEN and WANDB_API_KEY among them, unless sbatch gets --export.
#SBATCH --job-name=fr3e
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@300
#SBATCH --cpus-per-task=8
set -euo pipefail
# sbatch runs a copy of this file. The repository is REPOSITORY, the directory of submission, or that of this file.
repository=${REPOSITORY:-${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}}
[[ -f $repository/launch/launcher.sh ]] || {
  echo "slurm.sh: error: REPOSITORY=$repository has no launch/launcher.sh; submit from the repository, or set REPOSITORY" >&2
  exit 2
}
# shellcheck source-path=SCRIPTDIR source=launcher.sh
source "$repository/launch/launcher.sh"
$DRY_RUN || require SLURM_JOB_ID "to run under sbatch: sbatch --nodes=N --gpus-per-node=8 --ntasks-per-node=8 launch/slurm.sh"
require RUN_DIR "the run directory, on a file system that all nodes share"
require RECIPE "a recipe, such as configs/fr3e_qwen2.5_7b.yaml"
require_match RUN_DIR "/.*" "an absolute path: every node must find it"
$DRY_RUN || require_program srun "this runs on a Slurm cluster"
cd "$repository"
[[ -f $RECIPE ]] || fail "there is no recipe RECIPE=$RECIPE in $repository"
if [[ -n ${SLURM_GPUS_PER_NODE:-} && ${SLURM_GPUS_PER_NODE##*:} != "${SLURM_NTASKS_PER_NODE:-}" ]]; then
  fail "--ntasks-per-node=${SLURM_NTASKS_PER_NODE:-unset} with --gpus-per-node=$SLURM_GPUS_PER_NODE; jax needs one" \
    "process for each GPU, so set both to the same number"
fi

check_recipe "$RECIPE" "$@"
share_programs "$(dirname "$RUN_DIR")/compilation_cache" "$@"
$DRY_RUN || mkdir -p "$RUN_DIR/logs"
export RUN_DIR
# Each task names its log by its rank. If one task dies the others cannot go on, so srun ends them.
code=0
# shellcheck disable=SC2016  # the task's shell reads its own rank
run srun --kill-on-bad-exit=1 --output="$RUN_DIR/logs/slurm-%j.log" --open-mode=append \
  bash -c 'WORKER=process_$SLURM_PROCID exec launch/worker.sh "$@"' worker "$RECIPE" "$@" || code=$?
! $DRY_RUN || exit "$code"
if [[ $code -eq 0 && ! -f $RUN_DIR/summary.json && ${REQUEUE:-1} == 1 ]]; then
  echo "slurm.sh: the run was interrupted and has saved; the job goes back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
