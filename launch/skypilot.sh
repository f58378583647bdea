#!/usr/bin/env bash
# Train on machines that SkyPilot rents, of any cloud, as a managed job (launch/skypilot.yaml).
#
#   export RUNS=gs://my-bucket
#   launch/skypilot.sh configs/fr3e_qwen2.5_7b.yaml model.path=Qwen/Qwen2.5-7B   # start the run, or continue it
#   GPUS=A100:1 launch/skypilot.sh configs/fr3e_gsm8k.yaml
#   launch/skypilot.sh --dry-run RECIPE          # check the recipe and print the command
#
# Machines are spot ones by default: a preempted machine is replaced in any region, and the run goes on from its newest
# checkpoint in RUNS/RUN. RUN: the run's name (default: the recipe's file name). RUNS: a bucket, gs://NAME or s3://NAME.
# Optional: GPUS (H100:8), NODES (1), SPOT (true), DEVICE (jax's extra: cuda12, cuda13 or tpu). SECRETS: names of variables
# that the run gets (default: those of HF_TOKEN and WANDB_API_KEY that are set); no command line has their values. `sky
# jobs queue` and `sky jobs logs` show the job, `sky jobs cancel` ends it. Install SkyPilot with pip install
# "skypilot[gcp]" (or aws, lambda, runpod, ...), and log in as `sky check` says.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
[[ $# -ge 1 ]] || fail "no recipe given; usage: launch/skypilot.sh [--dry-run] RECIPE [key=value ...]"
recipe=$1
name=$(basename "$recipe")
RUN=${RUN:-${name%.*}} GPUS=${GPUS:-H100:8} NODES=${NODES:-1} SPOT=${SPOT:-true} DEVICE=${DEVICE:-cuda12}
require_match RUNS "(gs|s3|r2)://[a-z0-9][-_.a-z0-9]*" "a bucket, gs://NAME or s3://NAME"
require_match RUN "[-A-Za-z0-9._]+" "the name of a run"
require_match GPUS "[-A-Za-z0-9]+:[1-9][0-9]*" "a kind of accelerator and the number in a machine, such as H100:8"
require_match NODES "[1-9][0-9]*" "a number of machines"
require_match SPOT "true|false" "true or false"
require_match DEVICE "cuda12|cuda13|tpu" "cuda12, cuda13 or tpu"
read_secrets
cd "$here/.."
[[ $recipe != /* && -f $recipe ]] || fail "there is no recipe $recipe below $PWD; the machines get this folder alone"
check_recipe "$@"
$DRY_RUN || require_program sky "install SkyPilot with pip install \"skypilot[gcp]\" (or aws, lambda, ...), and run sky check"

spot=--use-spot
$SPOT || spot=--no-use-spot
job=$(tr -c 'a-z0-9\n' - <<<"${RUN,,}") settings=""
[[ $# -eq 1 ]] || settings=$(printf '%q ' "${@:2}")
run sky jobs launch launch/skypilot.yaml --yes --detach-run --name "fr3e-$job" --gpus "$GPUS" --num-nodes "$NODES" "$spot" \
  --env "RUNS=$RUNS" --env "RUN=$RUN" --env "RECIPE=$recipe" --env "SETTINGS=$settings" --env "DEVICE=$DEVICE" \
  "${secrets[@]/#/--secret=}"
