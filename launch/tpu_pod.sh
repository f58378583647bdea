#!/usr/bin/env bash
# Train on all workers of a TPU VM slice (multi-controller: every worker runs the same command).
#
#   export TPU_NAME=my-slice ZONE=us-east5-a PROJECT=my-project RUNS=gs://my-bucket/runs
#   launch/tpu_pod.sh RECIPE [key=value ...]     # start or continue the run, or watch it if it is running
#   launch/tpu_pod.sh --stop RECIPE              # save the current step and end
#
# Each call copies the committed files (git HEAD) to the workers, installs the packages if the lock file has changed,
# mounts the bucket, and starts the run unless it is running. Then it shows the output of worker 0 and waits. If the
# connection breaks, the run goes on. RUN is the run's name in RUNS (default: the recipe's file name). RUNS may also be
# an absolute path on a file system that the workers share. RUNS/RUN/logs has the logs of all workers, and
# RUNS/compilation_cache the compiled programs of all runs (JAX_COMPILATION_CACHE_DIR: another folder). PYTHON: an
# interpreter of the workers, 3.11 or newer; without it their newest is taken, or uv fetches one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR
source "$here/require.sh"

stop=false
[[ ${1:-} != --stop ]] || { stop=true && shift; }
[[ $# -ge 1 ]] || fail "no recipe given; usage: launch/tpu_pod.sh [--stop] RECIPE [key=value ...]"
require_program gcloud "install the Google Cloud CLI and log in with gcloud auth login"
require_match TPU_NAME "[a-z][-a-z0-9]*" "the name of a TPU VM slice"
require_match ZONE "[a-z]+-[a-z]+[0-9]+-[a-z]" "its zone, such as us-east5-a"
require_match PROJECT "[a-z][-a-z0-9:.]*" "a Google Cloud project"
require_match RUNS "gs://[a-z0-9][-_.a-z0-9]*(/.*)?|/.*" "gs://BUCKET[/FOLDER], or an absolute path on a shared disk"
recipe=$1
name=$(basename "$recipe")
export RUN=${RUN:-${name%.*}}
require_match RUN "[-A-Za-z0-9._=,+]+" "the name of a run"
cd "$here/.."
[[ -f $recipe ]] || fail "there is no recipe $recipe in $PWD"
git diff --quiet HEAD -- || echo "tpu_pod.sh: note: uncommitted changes are not copied" >&2

on_workers() {
  gcloud compute tpus tpu-vm ssh "$TPU_NAME" --zone="$ZONE" --project="$PROJECT" --worker="$1" --command="$2"
}
$stop || check_recipe "$@"
described=$(gcloud compute tpus tpu-vm describe "$TPU_NAME" --zone="$ZONE" --project="$PROJECT" --format="value(state)" 2>&1) || {
  reason=$(tr -s '[:space:]' ' ' <<<"$described")
  case $reason in
    *NOT_FOUND* | *"not found"*) advice="create it with gcloud compute tpus tpu-vm create, or correct name, zone or project" ;;
    *"auth login"* | *"active account"* | *redential* | *UNAUTHENTICATED* | *eauthenticat*) advice="log in with gcloud auth login" ;;
    *) advice="mend what gcloud says" ;;
  esac
  fail "TPU_NAME=$TPU_NAME in ZONE=$ZONE of PROJECT=$PROJECT cannot be described: $reason; $advice"
}
state=${described##*$'\n'} # gcloud may warn before it
[[ $state == READY ]] || fail "$TPU_NAME is $state; expected READY"

quoted=$(printf '%q ' "RUNS=$RUNS" "RUN=$RUN" ${PYTHON:+"PYTHON=$PYTHON"} \
  ${JAX_COMPILATION_CACHE_DIR:+"JAX_COMPILATION_CACHE_DIR=$JAX_COMPILATION_CACHE_DIR"})
if $stop; then
  on_workers all "env $quoted bash fr3e_jax/launch/tpu_worker.sh --stop"
  exit
fi

archive=$(mktemp -d)/fr3e_jax.tar.gz
trap 'rm -rf "$(dirname "$archive")"' EXIT
git archive --format=tar.gz --output="$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$TPU_NAME:fr3e_jax.tar.gz" --zone="$ZONE" --project="$PROJECT" --worker=all
arguments=$(printf '%q ' "$@")
on_workers all "mkdir -p fr3e_jax && tar -xzf fr3e_jax.tar.gz -C fr3e_jax && \
env $quoted bash fr3e_jax/launch/tpu_worker.sh $arguments"
