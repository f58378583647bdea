#!/usr/bin/env bash
# Copy a model into a bucket, from which the hosts of a run read it.
#
#   launch/copy_model.sh Qwen/Qwen2.5-7B gs://my-bucket/models/7b    # a model of the Hugging Face hub
#   launch/copy_model.sh runs/mine/final gs://my-bucket/models/mine  # a folder of this machine
#   launch/copy_model.sh --dry-run ...                               # print the commands and call nothing
#
# A run whose bucket is mounted at /runs then takes model.path=/runs/models/7b. Files that are there already are not
# copied again. HF_TOKEN: for models that ask for it. PYTHON: default .venv/bin/python.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
[[ $# -eq 2 ]] || fail "expected a model and a bucket: launch/copy_model.sh MODEL gs://BUCKET/FOLDER"
model=$1 TARGET=$2 python=${PYTHON:-$here/../.venv/bin/python}
require_match TARGET "gs://[a-z0-9][-_.a-z0-9]*/.+" "a folder of a bucket, gs://BUCKET/FOLDER"
if [[ -d $model ]]; then
  [[ -f $model/config.json ]] || fail "$model has no config.json; expected the folder of a Hugging Face model (fr3e export makes one)"
  folder=$model
else
  [[ $model =~ ^[-A-Za-z0-9._]+(/[-A-Za-z0-9._]+)?$ ]] || fail "$model is no folder here and no id of a model, OWNER/NAME"
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
$DRY_RUN || require_program gcloud "install the Google Cloud CLI and log in with gcloud auth login"
if [[ $folder != "$model" ]]; then
  fetch='import sys, huggingface_hub as hub; files = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
hub.snapshot_download(sys.argv[1], local_dir=sys.argv[2], allow_patterns=files)'
  run "$python" -c "$fetch" "$model" "$folder" || fail "$model was not fetched, see above; for a gated model export HF_TOKEN"
fi
if $DRY_RUN; then
  run gcloud storage rsync --recursive "$folder" "$TARGET"
  exit
fi
said=$(gcloud storage rsync --recursive "$folder" "$TARGET" 2>&1) || {
  reason=$(tail -n 3 <<<"$said" | tr -s '[:space:]' ' ')
  fail "$model was not copied to $TARGET: ${reason% }; $(cloud_advice "$reason")"
}
echo "$model is in $TARGET"
