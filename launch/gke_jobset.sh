#!/usr/bin/env bash
# Train on TPU slices of a GKE cluster: fill in gke_jobset.yaml.tmpl and print it, or pass it to kubectl.
#
#   export NAME=fr3e-7b IMAGE=us-docker.pkg.dev/my-project/fr3e/fr3e:1 BUCKET=my-runs
#   export ACCELERATOR=tpu-v5p-slice TOPOLOGY=4x4x4
#   launch/gke_jobset.sh configs/fr3e_qwen2.5_7b.yaml model.path=/runs/models/7b          # print the manifest
#   launch/gke_jobset.sh --apply configs/fr3e_qwen2.5_7b.yaml model.path=/runs/models/7b  # start, or start again
#   launch/gke_jobset.sh --dry-run ...                                                     # print it, as without --apply
#
# IMAGE: docker build --build-arg DEVICE=tpu (Dockerfile). The recipe is a path below the repository, as the image has it.
# The bucket is mounted at /runs: its folder NAME holds the run, NAME/logs has the logs of all pods, and
# compilation_cache the compiled programs of all runs.
# Optional: SLICES (1), CHIPS of a host (4), NAMESPACE (default), SERVICE_ACCOUNT (default; it must have access to the
# bucket), MAX_RESTARTS (10, of failures: a preempted or drained pod costs none), GRACE_SECONDS (600), SPOT=true (spot
# nodes), IDENTITY_PROVIDER (https://container.googleapis.com/v1/projects/P/locations/L/clusters/C, if the cluster has the
# open gcsfuse driver and not GKE's). Pods use the host's network: GKE 1.33.3 or newer lets their service account read
# the bucket then. SECRETS: names of variables that the pods get from a secret, which --apply writes (default: those of
# HF_TOKEN and WANDB_API_KEY that are set). SECRET: a secret of the namespace that exists, in place of that.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
apply=false
while [[ ${1:-} == --* ]]; do
  case $1 in
    --apply) apply=true ;;
    --dry-run) DRY_RUN=true ;;
    *) fail "unknown option $1; usage: launch/gke_jobset.sh [--apply] [--dry-run] RECIPE [key=value ...]" ;;
  esac
  shift
done
! $DRY_RUN || apply=false
[[ $# -ge 1 ]] || fail "no recipe given; usage: launch/gke_jobset.sh [--apply] RECIPE [key=value ...]"
[[ -f $1 ]] || fail "there is no recipe $1 in $PWD"
SLICES=${SLICES:-1} CHIPS=${CHIPS:-4} NAMESPACE=${NAMESPACE:-default} SERVICE_ACCOUNT=${SERVICE_ACCOUNT:-default}
MAX_RESTARTS=${MAX_RESTARTS:-10} GRACE_SECONDS=${GRACE_SECONDS:-600} SPOT=${SPOT:-false}
IDENTITY_PROVIDER=${IDENTITY_PROVIDER:-}
label="[a-z]([-a-z0-9]*[a-z0-9])?"
require_match NAME "$label" "a name of a job: lower-case letters, digits and dashes"
# shellcheck disable=SC2153  # the variable of the caller
[[ ${#NAME} -le 40 ]] || fail "NAME=$NAME has ${#NAME} characters; expected at most 40, because pods are named after it"
require_match IMAGE "[a-z0-9][-a-zA-Z0-9._/:@]*" "a container image, REGISTRY/NAME:TAG"
require_match BUCKET "[a-z0-9][-_.a-z0-9]*" "a bucket's name, without gs://"
require_match ACCELERATOR "tpu-[-a-z0-9]+" "GKE's name of a TPU, such as tpu-v5p-slice or tpu-v5-lite-podslice"
require_match TOPOLOGY "[1-9][0-9]*x[1-9][0-9]*(x[1-9][0-9]*)?" "the shape of a slice, such as 4x4x4"
require_match SLICES "[1-9][0-9]*" "a number of slices"
require_match CHIPS "[1-9][0-9]*" "the chips of one host"
require_match NAMESPACE "$label" "a namespace of the cluster"
require_match SERVICE_ACCOUNT "$label" "a service account of the namespace"
require_match MAX_RESTARTS "[0-9]+" "a number of restarts"
require_match GRACE_SECONDS "[1-9][0-9]*" "seconds between SIGTERM and SIGKILL"
require_match SPOT "true|false" "true or false"
[[ -z $IDENTITY_PROVIDER ]] || require_match IDENTITY_PROVIDER "https://[-a-z0-9./:]+" "the address of a cluster's identities"
secret_exists=${SECRET:+true} SECRET=${SECRET:-$NAME-secrets}
require_match SECRET "[a-z0-9]([-.a-z0-9]*[a-z0-9])?" "the name of a secret of the namespace"
read_secrets
chips=$((${TOPOLOGY//x/*}))
((chips % CHIPS == 0)) ||
  fail "TOPOLOGY=$TOPOLOGY has $chips chips, which are not whole hosts of CHIPS=$CHIPS; set CHIPS to those of one host"
# shellcheck disable=SC2034  # read by name below
HOSTS=$((chips / CHIPS))

check_recipe "$@"
share_programs /runs/compilation_cache "$@"
# shellcheck disable=SC2034  # read by name below; empty: the arguments name the folder
CACHE=${JAX_COMPILATION_CACHE_DIR:-}

# The arguments as a YAML flow sequence of double-quoted strings.
ARGUMENTS=""
for argument in "$@"; do
  [[ $argument != *[[:cntrl:]]* ]] || fail "an argument has a control character: $(printf '%q' "$argument")"
  argument=${argument//\\/\\\\}
  ARGUMENTS+="${ARGUMENTS:+, }\"${argument//\"/\\\"}\""
done
ARGUMENTS="[$ARGUMENTS]"

manifest=$(<"$here/gke_jobset.yaml.tmpl")
$SPOT || manifest=$(sed '/# spot$/d' <<<"$manifest")
[[ -n $IDENTITY_PROVIDER ]] || manifest=$(sed '/# open driver$/d' <<<"$manifest")
for name in IDENTITY_PROVIDER SECRET NAME NAMESPACE IMAGE BUCKET ACCELERATOR TOPOLOGY SLICES HOSTS CHIPS SERVICE_ACCOUNT MAX_RESTARTS \
  GRACE_SECONDS CACHE ARGUMENTS; do
  manifest=${manifest//"\${$name}"/"${!name}"}
done
if ! $apply; then
  printf '%s\n' "$manifest"
  exit
fi
require_program kubectl "install it and choose the cluster with gcloud container clusters get-credentials"
# An ended set cannot be changed, so it is deleted. A running set is left alone, and the command is refused.
if said=$(kubectl get jobset "$NAME" --namespace="$NAMESPACE" 2>&1); then
  ended=$(kubectl get jobset "$NAME" --namespace="$NAMESPACE" -o jsonpath='{.status.terminalState}')
  [[ -n $ended ]] || fail "$NAME is running; watch it with kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=$NAME"
  kubectl delete jobset "$NAME" --namespace="$NAMESPACE" --wait=true
elif [[ $said != *NotFound* && $said != *"not found"* ]]; then
  reason=$(tr -s '[:space:]' ' ' <<<"$said")
  fail "the cluster does not answer: ${reason% }; $(cloud_advice "$reason")"
fi
if [[ ${#secrets[@]} -gt 0 && -z $secret_exists ]]; then
  for name in "${secrets[@]}"; do printf '%s=%s\n' "$name" "${!name}"; done |
    kubectl create secret generic "$SECRET" --namespace="$NAMESPACE" --from-env-file=/dev/stdin --dry-run=client -o yaml |
    kubectl apply -f -
fi
printf '%s\n' "$manifest" | kubectl apply -f -
