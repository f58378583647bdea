#!/usr/bin/env bash
# Train on all devices of this machine. After an interruption the same command continues the run.
#
#   launch/local.sh [-n PROCESSES] RECIPE [key=value ...]
#   RUN_DIR=runs/mine launch/local.sh configs/demo.yaml training.max_steps=20
#   launch/local.sh -n 2 configs/demo.yaml          # two CPU processes, to try out a run on many machines
#   launch/local.sh --dry-run configs/demo.yaml     # check the recipe and print what would run
#
# RUN_DIR: default runs/NAME, with the name of the recipe's file. FR3E: default .venv/bin/fr3e. CPU_DEVICES: virtual
# devices of each process with -n (default 1). RUN_DIR/logs has the logs of all processes. On Ctrl-C or SIGTERM all
# processes save and end.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
processes=1
while getopts ":n:" option; do
  case $option in
    n) processes=$OPTARG ;;
    *) fail "unknown option -$OPTARG; usage: launch/local.sh [-n PROCESSES] RECIPE [key=value ...]" ;;
  esac
done
shift $((OPTIND - 1))
require_match processes "[1-9][0-9]*" "a number of processes"
[[ $# -ge 1 ]] || fail "no recipe given; usage: launch/local.sh [-n PROCESSES] RECIPE [key=value ...]"
[[ -f $1 ]] || fail "there is no recipe $1"
name=$(basename "$1")
export RUN_DIR=${RUN_DIR:-runs/${name%.*}}

if $DRY_RUN; then
  check_recipe "$@"
  for ((index = 0; index < processes; index++)); do
    run env "RUN_DIR=$RUN_DIR" "WORKER=process_$index" "$here/worker.sh" "$@"
  done
  exit
fi
if [[ $processes -eq 1 ]]; then
  WORKER=process_0 exec "$here/worker.sh" "$@"
fi

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} JAX_NUM_CPU_DEVICES=${CPU_DEVICES:-1}
export JAX_NUM_PROCESSES=$processes
JAX_COORDINATOR_ADDRESS=127.0.0.1:$(free_port)
export JAX_COORDINATOR_ADDRESS

pids=()
# Background processes of a script do not receive Ctrl-C.
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM
for ((index = 0; index < processes; index++)); do
  quiet=/dev/stdout
  [[ $index -eq 0 ]] || quiet=/dev/null # the log has the output
  JAX_PROCESS_ID=$index WORKER=process_$index "$here/worker.sh" "$@" >"$quiet" 2>&1 &
  pids+=($!)
done

# wait returns early when a signal is handled, so repeat it until each process has ended.
worst=0
for pid in "${pids[@]}"; do
  code=0
  while true; do
    wait "$pid" && code=0 || code=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  [[ $code -eq 0 || $worst -ne 0 ]] || worst=$code
done
[[ $worst -eq 0 ]] || echo "local.sh: a process ended with code $worst; the logs are in $RUN_DIR/logs" >&2
exit "$worst"
