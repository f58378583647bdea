#!/usr/bin/env bash
# Create, show or delete a TPU VM slice, as a queued resource of the same name.
#
#   export TPU_NAME=my-slice ZONE=us-east5-a PROJECT=my-project TPU_TYPE=v5p-128
#   launch/tpu_slice.sh create     # ask for it, and wait until it is ready; a preempted or failed one is replaced
#   launch/tpu_slice.sh state
#   launch/tpu_slice.sh delete     # the slice and its request; the runs in the bucket stay
#   launch/tpu_slice.sh --dry-run create     # print the command and call nothing
#
# Optional: SPOT=true (cheaper, and Google may take it back; launch/tpu_pod.sh replaces it if TPU_TYPE is set), RUNTIME
# (the software of the workers; by default that of TPU_TYPE), WAIT_MINUTES (without end; the request stays in the queue),
# POLL_SECONDS (30).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
action=${1:-}
[[ $# -eq 1 && $action =~ ^(create|state|delete)$ ]] || fail "expected create, state or delete: launch/tpu_slice.sh create"
require_match TPU_NAME "[a-z][-a-z0-9]*" "the name of a TPU VM slice"
require_match ZONE "[a-z]+-[a-z]+[0-9]+-[a-z]" "its zone, such as us-east5-a"
require_match PROJECT "[a-z][-a-z0-9:.]*" "a Google Cloud project"
SPOT=${SPOT:-false} POLL_SECONDS=${POLL_SECONDS:-30}
require_match SPOT "true|false" "true or false"
if [[ $action == create ]]; then
  require_match TPU_TYPE "[a-z0-9]+-[0-9]+" "the type of a slice, such as v5p-128 or v6e-256"
  case $TPU_TYPE in
    v2-* | v3-* | v4-*) RUNTIME=${RUNTIME:-tpu-ubuntu2204-base} ;;
    v5litepod-*) RUNTIME=${RUNTIME:-v2-alpha-tpuv5-lite} ;;
    v5p-*) RUNTIME=${RUNTIME:-v2-alpha-tpuv5} ;;
    v6e-*) RUNTIME=${RUNTIME:-v2-alpha-tpuv6e} ;;
  esac
  require RUNTIME "the software of the workers of TPU_TYPE=$TPU_TYPE (gcloud compute tpus tpu-vm versions list)"
fi
[[ -z ${WAIT_MINUTES:-} ]] || require_match WAIT_MINUTES "[0-9]+" "a number of minutes"
$DRY_RUN || require_program gcloud "install the Google Cloud CLI and log in with gcloud auth login"
where=(--zone="$ZONE" --project="$PROJECT")

# state_of KIND FIELD: the state of the slice (tpu-vm) or of its request (queued-resources); NONE if there is none.
state_of() {
  local answer reason
  answer=$(gcloud compute tpus "$1" describe "$TPU_NAME" "${where[@]}" --format="value($2)" 2>&1) || {
    reason=$(tr -s '[:space:]' ' ' <<<"$answer")
    [[ $reason != *NOT_FOUND* && $reason != *"not found"* ]] || { echo NONE && return; }
    fail "TPU_NAME=$TPU_NAME in ZONE=$ZONE of PROJECT=$PROJECT cannot be described: ${reason% }; $(cloud_advice "$reason")"
  }
  echo "${answer##*$'\n'}" # gcloud may warn before it
}

delete() {
  [[ $2 == NONE ]] || run gcloud compute tpus queued-resources delete "$TPU_NAME" "${where[@]}" --force --quiet
  # A slice that was made without a request has to go by itself.
  [[ $2 != NONE || $1 == NONE ]] || run gcloud compute tpus tpu-vm delete "$TPU_NAME" "${where[@]}" --quiet
}

ask() {
  local spot=()
  ! $SPOT || spot=(--spot)
  run gcloud compute tpus queued-resources create "$TPU_NAME" --node-id="$TPU_NAME" "${where[@]}" \
    --accelerator-type="$TPU_TYPE" --runtime-version="$RUNTIME" "${spot[@]}"
}

if $DRY_RUN; then
  case $action in create) ask ;; delete) delete NONE UNKNOWN ;; state) echo "nothing to change" ;; esac
  exit
fi
slice=$(state_of tpu-vm state) || exit
request=$(state_of queued-resources state.state) || exit
case $action in
  state) echo "$TPU_NAME: slice $slice, request $request" && exit ;;
  delete)
    delete "$slice" "$request"
    echo "$TPU_NAME: deleted"
    exit
    ;;
esac
begin=$SECONDS said="" asked=false
until [[ $slice == READY ]]; do
  case $slice-$request in
    NONE-NONE) ask && asked=true ;;
    *-FAILED)
      ! $asked || fail "the request for $TPU_NAME has FAILED; gcloud compute tpus queued-resources describe $TPU_NAME --zone=$ZONE says why"
      delete "$slice" "$request"
      ;;
    # A request is used up once its slice was taken back.
    PREEMPTED-* | TERMINATED-* | *-SUSPENDED)
      echo "$TPU_NAME is $slice, its request $request; it is replaced"
      delete "$slice" "$request"
      ;;
    STOPPED-*) run gcloud compute tpus tpu-vm start "$TPU_NAME" "${where[@]}" ;;
  esac
  if [[ -n ${WAIT_MINUTES:-} && $((SECONDS - begin)) -ge $((60 * WAIT_MINUTES)) ]]; then
    fail "$TPU_NAME is still $slice after $WAIT_MINUTES minutes, its request $request; the request stays: give the same" \
      "command again, or give it up with launch/tpu_slice.sh delete"
  fi
  sleep "$POLL_SECONDS"
  slice=$(state_of tpu-vm state) || exit
  request=$(state_of queued-resources state.state) || exit
  [[ $slice-$request == "$said" ]] || echo "$TPU_NAME: slice $slice, request $request"
  said=$slice-$request
done
echo "$TPU_NAME is ready"
