#!/usr/bin/env bash
# One process of a run. Every launcher runs this script on every machine; a user does not call it.
#   RUN_DIR=DIR [WORKER=NAME] [FR3E=.venv/bin/fr3e] launch/worker.sh RECIPE [key=value ...]
# It starts the run in RUN_DIR or continues it after an interruption. The output is also appended to
# RUN_DIR/logs/WORKER.log. On SIGTERM the run saves and ends with code 0, or with UNFINISHED_CODE if that is set,
# because some schedulers take 0 for the end of the run.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/require.sh"
require RUN_DIR "the run directory, on a file system that all processes of the run share"
[[ $# -ge 1 ]] || fail "no recipe given; expected: launch/worker.sh RECIPE [key=value ...]"
fr3e=${FR3E:-$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/fr3e}
command -v "$fr3e" >/dev/null || fail "there is no program $fr3e; run \`make\` in the repository, or set FR3E to the fr3e command"
mkdir -p "$RUN_DIR/logs"
log="$RUN_DIR/logs/${WORKER:-$(hostname)}.log"
echo "$(date -u +%FT%TZ) $(hostname): fr3e train $* --continue runtime.run_dir=$RUN_DIR" >>"$log"
command=("$fr3e" train "$@" --continue "runtime.run_dir=$RUN_DIR")
# A mounted bucket shows a file when it is closed, and what is not closed is lost with the host. So there the log is
# opened and closed every few seconds.
log_in_pieces() {
  local line piece="" since=$SECONDS
  while true; do
    if IFS= read -r -t 1 line; then
      printf '%s\n' "$line"
      piece+=$line$'\n'
    else
      [[ $? -gt 128 ]] || break # the end; otherwise no whole line has come in time
      piece+=$line
      printf %s "$line"
    fi
    if [[ -n $piece && $((SECONDS - since)) -ge ${LOG_SECONDS:-10} ]]; then
      printf %s "$piece" >>"$log"
      piece="" since=$SECONDS
    fi
  done
  printf %s "$line"
  printf %s "$piece$line" >>"$log"
}
case $(stat --file-system --format=%T "$RUN_DIR/logs") in
  fuse*) exec > >(trap "" TERM INT && log_in_pieces) 2>&1 && logger=$! ;;
  *) exec > >(exec tee -a "$log") 2>&1 ;;
esac
[[ -n ${UNFINISHED_CODE:-} ]] || exec "${command[@]}" # this process becomes the run, so that signals reach it

"${command[@]}" &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
while true; do # wait returns early when a signal is handled
  wait "$run" && code=0 || code=$?
  kill -0 "$run" 2>/dev/null || break
done
[[ $code -ne 0 || -f $RUN_DIR/summary.json ]] || code=$UNFINISHED_CODE
exec >/dev/null 2>&1 # the log's last piece is written when its input ends, and a pod ends with this process
for _ in {1..50}; do
  if [[ -z ${logger:-} ]] || ! kill -0 "$logger" 2>/dev/null; then break; fi
  sleep 0.1
done
exit "$code"
