#!/usr/bin/env bash
# A sweep over several TPU slices: the product of comma-separated values, each combination on the next free slice.
#
#   export SLICES="slice-a slice-b" ZONE=us-east5-a PROJECT=my-project RUNS=gs://my-bucket/runs
#   launch/sweep.sh configs/demo.yaml seed=0,1,2 explore.num_anchors=2,4
#
# On one machine use `fr3e sweep`. Each combination is a run SWEEP-COMBINATION in RUNS (SWEEP: default the recipe's file
# name), started by tpu_pod.sh, whose variables these are. The same command again goes on with what is not finished:
# finished ones are remembered in STATE (default .sweep-SWEEP), which also has the output of every launch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR
source "$here/require.sh"

require SLICES "names of TPU VM slices, separated by spaces"
[[ $# -ge 2 ]] || fail "expected a recipe and settings with several values: launch/sweep.sh RECIPE key=A,B ..."
recipe=$1
shift
name=$(basename "$recipe")
sweep=${SWEEP:-${name%.*}}
state=${STATE:-.sweep-$sweep}
launcher=${LAUNCHER:-$here/tpu_pod.sh}
fr3e=${FR3E:-$here/../.venv/bin/fr3e}
command -v "$fr3e" >/dev/null || fail "$fr3e is no program; install with \`make\` there, or set FR3E to the fr3e command"
mkdir -p "$state"

# fr3e itself checks every combination and names it; the last word of a line is its run directory.
combinations=$("$fr3e" sweep "$recipe" "$@" --dry-run) || exit $?
mapfile -t lines <<<"$combinations"
rm -f "$state"/*.taken

run_one() { # SLICE LINE: 0 if the combination is finished
  local label words
  declare -a words
  eval "words=($2)" # quoted for a shell by fr3e sweep
  label=$(basename "${words[-1]#runtime.run_dir=}")
  unset "words[-1]"
  [[ ! -f $state/$label.done ]] || return 0
  # Noclobber makes the file only where there is none: the combination goes to one slice.
  (set -o noclobber && echo "$1" >"$state/$label.taken") 2>/dev/null || return 0
  echo "$label: on $1, output in $state/$label.log"
  # Without the program, -m, the module and the verb that stand before the recipe.
  if TPU_NAME=$1 RUN=$sweep-$label "$launcher" "${words[@]:4}" >>"$state/$label.log" 2>&1 </dev/null; then
    touch "$state/$label.done"
    echo "$label: finished"
  else
    echo "$label: failed on $1; see $state/$label.log" >&2
    return 1
  fi
}

serve() { # SLICE: one combination after another; a failed one does not end the slice
  local line failed=0
  for line in "${lines[@]}"; do
    run_one "$1" "$line" || failed=1
  done
  return "$failed"
}

pids=()
for slice in $SLICES; do
  serve "$slice" &
  pids+=($!)
done
worst=0
for pid in "${pids[@]}"; do
  wait "$pid" || worst=1
done
done_files=("$state"/*.done)
[[ -e ${done_files[0]} ]] || done_files=()
echo "${#done_files[@]} of ${#lines[@]} combinations are finished; the same command goes on with the others"
exit "$worst"
