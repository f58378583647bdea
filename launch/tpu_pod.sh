#!/usr/bin/env bash
# Train on all workers of a TPU VM slice (multi-controller: every worker runs the same command).
#
#   export TPU_NAME=my-slice ZONE=us-east5-a PROJECT=my-project RUNS=gs://my-bucket/runs
#   launch/tpu_pod.sh RECIPE [key=value ...]     # start or continue the run, or watch it if it is running
#   launch/tpu_pod.sh --stop RECIPE              # save the current step and end
#   launch/tpu_pod.sh --dry-run RECIPE           # check everything here and print what would run
#
# Each call copies the committed files (git HEAD) to the workers, installs the packages if the lock file has changed,
# mounts the bucket, and starts the run unless it is running. Then it shows the output of worker 0 and waits. If the
# connection breaks, the run goes on. RUN is the run's name in RUNS (default: the recipe's file name). RUNS may also be
# an absolute path on a file system that the workers share. RUNS/RUN/logs has the logs of all workers, and
# RUNS/compilation_cache the compiled programs of all runs (JAX_COMPILATION_CACHE_DIR: another folder). PYTHON: an
# interpreter of the workers, 3.11 or newer; without it their newest is taken, or uv fetches one.
#
# A slice that is being made is waited for (WAIT_MINUTES, 60). With TPU_TYPE, a slice that is not there is created, and a
# preempted one is replaced as often as that happens, also in mid-run (launch/tpu_slice.sh has further variables, such as
# SPOT). Without it, a preempted slice is named. SECRETS: names of variables to pass to the run (default: those of
# HF_TOKEN and WANDB_API_KEY that are set); their values are in no command line.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
stop=false
while [[ ${1:-} == --* ]]; do
  case $1 in
    --stop) stop=true ;;
    --dry-run) DRY_RUN=true ;;
    *) fail "unknown option $1; usage: launch/tpu_pod.sh [--stop] [--dry-run] RECIPE [key=value ...]" ;;
  esac
  shift
done
[[ $# -ge 1 ]] || fail "no recipe given; usage: launch/tpu_pod.sh [--stop] RECIPE [key=value ...]"
$DRY_RUN || require_program gcloud "install the Google Cloud CLI and log in with gcloud auth login"
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
$stop || [[ $recipe == /* && $RUNS == /* ]] || git cat-file -e "HEAD:./$recipe" 2>/dev/null ||
  fail "$recipe is not committed, and the workers get the committed files of $PWD alone; git add and git commit it"
git diff --quiet HEAD -- || echo "tpu_pod.sh: note: uncommitted changes are not copied" >&2

WAIT_MINUTES=${WAIT_MINUTES:-60}
export POLL_SECONDS=${POLL_SECONDS:-30}
require_match WAIT_MINUTES "[0-9]+" "a number of minutes"
read_secrets

on_workers() {
  run gcloud compute tpus tpu-vm ssh "$TPU_NAME" --zone="$ZONE" --project="$PROJECT" --worker="$1" --command="$2"
}
$stop || check_recipe "$@"

# state: of the slice; NONE if there is none.
state() {
  local described reason
  described=$(gcloud compute tpus tpu-vm describe "$TPU_NAME" --zone="$ZONE" --project="$PROJECT" --format="value(state)" 2>&1) || {
    reason=$(tr -s '[:space:]' ' ' <<<"$described")
    [[ $reason != *NOT_FOUND* && $reason != *"not found"* ]] || { echo NONE && return; }
    fail "TPU_NAME=$TPU_NAME in ZONE=$ZONE of PROJECT=$PROJECT cannot be described: ${reason% }; $(cloud_advice "$reason")"
  }
  echo "${described##*$'\n'}" # gcloud may warn before it
}

# wait_for_slice: return when it is ready; replace it, or say what to do.
wait_for_slice() {
  local found begin=$SECONDS said=false
  while found=$(state) && [[ $found != READY ]]; do
    case $found in
      NONE | PREEMPTED | TERMINATED | STOPPED | SUSPENDED)
        if [[ -n ${TPU_TYPE:-} ]] && ! $stop; then
          "$here/tpu_slice.sh" create || exit
          continue
        fi
        case $found in
          NONE) fail "TPU_NAME=$TPU_NAME was not found in ZONE=$ZONE of PROJECT=$PROJECT; create it with launch/tpu_slice.sh create, or correct name, zone or project" ;;
          STOPPED) fail "$TPU_NAME is STOPPED; start it with gcloud compute tpus tpu-vm start, or set TPU_TYPE, and it is started here" ;;
          *) fail "$TPU_NAME is $found: it was preempted. The run is whole in $RUNS/$RUN up to its newest checkpoint; replace the slice with" \
            "launch/tpu_slice.sh create, or set TPU_TYPE, and it is replaced here" ;;
        esac
        ;;
    esac
    ((SECONDS - begin < 60 * WAIT_MINUTES)) ||
      fail "$TPU_NAME is still $found after $WAIT_MINUTES minutes; expected READY (WAIT_MINUTES waits longer)"
    $said || echo "tpu_pod.sh: $TPU_NAME is $found; waiting until it is ready" >&2
    said=true
    sleep "$POLL_SECONDS"
  done
  [[ $found == READY ]] || exit 2 # `state` has said why
}

quoted=$(printf '%q ' "RUNS=$RUNS" "RUN=$RUN" ${PYTHON:+"PYTHON=$PYTHON"} \
  ${JAX_COMPILATION_CACHE_DIR:+"JAX_COMPILATION_CACHE_DIR=$JAX_COMPILATION_CACHE_DIR"})
if $stop; then
  $DRY_RUN || wait_for_slice
  on_workers all "env $quoted bash fr3e_jax/launch/tpu_worker.sh --stop"
  exit
fi

files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
git archive --format=tar.gz --output="$files/fr3e_jax.tar.gz" HEAD
arguments=$(printf '%q ' "$@")
(umask 077 && for name in "${secrets[@]}"; do printf 'export %s=%q\n' "$name" "${!name}"; done >"$files/secrets")

copy() {
  run gcloud compute tpus tpu-vm scp "$files/$1" "$TPU_NAME:$2" --zone="$ZONE" --project="$PROJECT" --worker=all
}

train() {
  copy fr3e_jax.tar.gz fr3e_jax.tar.gz || return
  [[ ${#secrets[@]} -eq 0 ]] || copy secrets .fr3e_secrets || return
  on_workers all "mkdir -p fr3e_jax && tar -xzf fr3e_jax.tar.gz -C fr3e_jax && \
env $quoted bash fr3e_jax/launch/tpu_worker.sh $arguments"
}

if $DRY_RUN; then
  train
  exit
fi
while true; do
  wait_for_slice
  code=0
  train || code=$?
  [[ $code -ne 0 ]] || exit 0
  found=$(state) || exit
  [[ $found != READY ]] || exit "$code"
  echo "tpu_pod.sh: $TPU_NAME is $found: the run stopped with it, and goes on from its newest checkpoint" >&2
done
