#!/usr/bin/env bash
# Train on TPU slices of a GKE cluster that xpk manages.
#
#   xpk storage attach runs --cluster=my-cluster --zone=us-east5-a --project=my-project --type=gcsfuse \
#     --bucket=my-runs --mount-point=/runs --readonly=false --auto-mount=false --size=1 \
#     --mount-options=implicit-dirs,rename-dir-limit=200000                                  # once
#   export CLUSTER=my-cluster ZONE=us-east5-a PROJECT=my-project TPU_TYPE=v5p-128
#   export IMAGE=us-docker.pkg.dev/my-project/fr3e/fr3e:1 NAME=fr3e-7b
#   launch/xpk.sh configs/fr3e_qwen2.5_7b.yaml model.path=/runs/models/7b    # start; after its end, start again
#
# IMAGE: docker build --build-arg DEVICE=tpu (Dockerfile). /runs/NAME holds the run, NAME/logs the logs of all hosts,
# and /runs/compilation_cache the compiled programs of all runs. An interrupted run restarts and continues.
# Optional: STORAGE (runs), SLICES (1), MAX_RESTARTS (10), GRACE_SECONDS (600), PRIORITY (medium), SPOT=true (spot nodes).
# SECRETS: names of variables to pass to the run (default: those of HF_TOKEN and WANDB_API_KEY that are set). They are in
# no command line, but readers of the workload in the cluster see them. --dry-run prints the command and calls nothing.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
[[ $# -ge 1 ]] || fail "no recipe given; usage: launch/xpk.sh [--dry-run] RECIPE [key=value ...]"
[[ -f $1 ]] || fail "there is no recipe $1 in $PWD"
STORAGE=${STORAGE:-runs} SLICES=${SLICES:-1} MAX_RESTARTS=${MAX_RESTARTS:-10} GRACE_SECONDS=${GRACE_SECONDS:-600}
PRIORITY=${PRIORITY:-medium} SPOT=${SPOT:-false}
label="[a-z]([-a-z0-9]*[a-z0-9])?"
require_match NAME "$label" "a name of a workload: lower-case letters, digits and dashes"
# shellcheck disable=SC2153  # the variable of the caller
[[ ${#NAME} -le 39 ]] || fail "NAME=$NAME has ${#NAME} characters; expected at most 39, because pods are named after it"
require_match IMAGE "[a-z0-9][-a-zA-Z0-9._/:@]*" "a container image, REGISTRY/NAME:TAG"
require_match CLUSTER "$label" "a cluster that xpk made or adapted"
require_match ZONE "[a-z]+-[a-z]+[0-9]+-[a-z]" "its zone, such as us-east5-a"
require_match PROJECT "[a-z][-a-z0-9:.]*" "a Google Cloud project"
require_match TPU_TYPE "[a-z0-9]+(-[0-9]+|-[0-9]+x[0-9x]+)" "the type of a slice, such as v5p-128 or v6e-256"
require_match STORAGE "$label" "the name of a storage that is mounted at /runs (xpk storage attach)"
require_match SLICES "[1-9][0-9]*" "a number of slices"
require_match MAX_RESTARTS "[0-9]+" "a number of restarts"
require_match GRACE_SECONDS "[1-9][0-9]*" "seconds between SIGTERM and SIGKILL"
require_match PRIORITY "very-low|low|medium|high|very-high" "a priority of xpk"
require_match SPOT "true|false" "true or false"
read_secrets
$DRY_RUN || require_program xpk "install it with pip install xpk, and log in with gcloud auth login"
check_recipe "$@"
share_programs /runs/compilation_cache "$@"

# A run that saved and ended on SIGTERM gives 75, with which xpk restarts it.
variables=("RUN_DIR=/runs/$NAME" FR3E=fr3e UNFINISHED_CODE=75
  ${JAX_COMPILATION_CACHE_DIR:+"JAX_COMPILATION_CACHE_DIR=$JAX_COMPILATION_CACHE_DIR"})
command="cd /opt/fr3e_jax && env$(printf ' %q' "${variables[@]}") launch/worker.sh$(printf ' %q' "$@")"
further=()
! $SPOT || further+=(--spot)
if [[ ${#secrets[@]} -gt 0 ]]; then
  file=$(umask 077 && mktemp)
  trap 'rm -f "$file"' EXIT
  for name in "${secrets[@]}"; do printf '%s=%s\n' "$name" "${!name}"; done >"$file"
  further+=("--env-file=$file")
fi
run xpk workload create --workload="$NAME" --cluster="$CLUSTER" --zone="$ZONE" --project="$PROJECT" \
  --tpu-type="$TPU_TYPE" --num-slices="$SLICES" --docker-image="$IMAGE" --storage="$STORAGE" --priority="$PRIORITY" \
  --max-restarts="$MAX_RESTARTS" --restart-on-exit-codes=75 --termination-grace-period-seconds="$GRACE_SECONDS" \
  "${further[@]}" --command="$command"
