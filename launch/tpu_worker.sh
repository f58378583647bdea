#!/usr/bin/env bash
# The part of tpu_pod.sh that runs on each worker of a slice. tpu_pod.sh calls it; a user does not.
#   RUNS=gs://BUCKET[/FOLDER] RUN=NAME tpu_worker.sh [--stop] RECIPE [key=value ...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR
source "$here/require.sh"
require RUNS "gs://BUCKET[/FOLDER], or an absolute path on a shared disk"
require RUN "the name of a run"
state=${FR3E_STATE:-$HOME/.fr3e_jax} # records this worker's running process and installed packages
mkdir -p "$state"
pid_file=$state/${RUN:?}.pid
trap 'rm -f "$HOME/.fr3e_secrets"' EXIT

running() {
  [[ -f $pid_file ]] && kill -0 "$(cat "$pid_file")" 2>/dev/null
}

if [[ ${1:-} == --stop ]]; then
  if running; then
    kill -TERM "$(cat "$pid_file")"
    echo "$(hostname): asked $RUN to save and end"
  else
    echo "$(hostname): $RUN is not running"
  fi
  exit
fi

# Print an interpreter of Python 3.11 or newer. Some images of TPU VMs carry 3.10; there uv fetches one.
choose_python() {
  local python uv=$state/uv/bin/uv
  for python in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  [[ -z ${PYTHON:-} ]] || fail "$(hostname): PYTHON=$PYTHON is not Python 3.11 or newer; leave it out, and uv fetches one"
  [[ -x $uv ]] || python3 -m pip install --quiet --target "$state/uv" uv >&2
  if ! { "$uv" python install --quiet 3.12 >&2 && "$uv" python find 3.12; }; then
    fail "$(hostname): found no Python 3.11 or newer, and uv could fetch none; install one, and set PYTHON to it"
  fi
}

install() {
  local lock python
  lock=$(cat requirements.lock pyproject.toml | sha256sum)
  [[ -f $state/installed && $(cat "$state/installed") == "$lock" ]] && return
  python=$(choose_python)
  make PYTHON="$python" .venv/.installed
  # The TPU runtime must match the installed jax.
  .venv/bin/python -m pip install --quiet "jax[tpu]==$(.venv/bin/python -c 'import jax; print(jax.__version__)')"
  echo "$lock" >"$state/installed"
}

mount_bucket() {
  local bucket=${RUNS#gs://}
  local folder=${bucket#*/}
  [[ $folder != "$bucket" ]] || folder=""
  bucket=${bucket%%/*}
  require_program gcsfuse "install it on the workers, or set RUNS to a path on a disk that they share"
  mkdir -p "$HOME/buckets/$bucket"
  # Orbax renames a folder when a checkpoint is complete, which gcsfuse refuses without a limit.
  mountpoint -q "$HOME/buckets/$bucket" ||
    gcsfuse --implicit-dirs --rename-dir-limit=200000 "$bucket" "$HOME/buckets/$bucket"
  RUNS=$HOME/buckets/$bucket${folder:+/$folder}
}

cd "$here/.."
[[ ${FR3E_INSTALL:-1} == 0 ]] || install
[[ $RUNS != gs://* ]] || mount_bucket
index=${TPU_WORKER_ID:-$(hostname)} # hostnames of a slice end in its worker numbers
share_programs "$RUNS/compilation_cache" "$@"
# A worker that ends before the budget is spent must not count as finished.
export RUN_DIR=$RUNS/$RUN WORKER=worker_${index##*-} UNFINISHED_CODE=75
output=$state/$RUN.output

if running; then
  echo "$(hostname): $RUN is running already, as process $(cat "$pid_file")"
else
  # The launcher has put the secrets here, which only the run is to see.
  if [[ -f $HOME/.fr3e_secrets ]]; then
    # shellcheck source=/dev/null
    source "$HOME/.fr3e_secrets"
  fi
  # Its own session lets it outlive the connection.
  # shellcheck disable=SC2016  # the inner shell writes its own process number
  setsid nohup bash -c 'echo $$ >"$1"; shift; exec "$@"' worker "$pid_file" "$here/worker.sh" "$@" \
    >"$output" 2>&1 </dev/null &
  started=$!
  until running || ! kill -0 "$started" 2>/dev/null; do sleep 0.1; done
fi
if [[ ${index##*-} =~ ^w?-?0$ || ${SHOW:-} == all ]]; then
  tail -n +1 --pid="$(cat "$pid_file")" -f "$output"
fi
while running; do sleep 1; done
if [[ -n ${started:-} ]]; then
  code=0
  wait "$started" || code=$?
  if [[ $code -eq $UNFINISHED_CODE ]]; then
    echo "$(hostname): $RUN has saved and ended before its budget was spent; the same command continues it"
    exit "$code"
  fi
  [[ $code -eq 0 ]] || { tail -n 20 "$output" >&2 && fail "$(hostname): $RUN ended with code $code; see $RUN_DIR/logs"; }
fi
