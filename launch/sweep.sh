#!/usr/bin/env bash
# Run a sweep over several TPU slices: all combinations of comma-separated values, each on the next free slice.
#
#   export SLICES="slice-a slice-b" ZONE=us-east5-a PROJECT=my-project RUNS=gs://my-bucket/runs
#   launch/sweep.sh configs/demo_fr3e.yaml seed=0,1,2 explore.num_anchors=2,4
#
# On a single machine use `fr3e sweep`. Each combination is a run SWEEP-COMBINATION in RUNS, started by tpu_pod.sh with
# the same variables. SWEEP is by default the recipe's file name. The same command again continues with the unfinished
# combinations: STATE (default .sweep-SWEEP) records the finished ones, and has the output of every launch. --dry-run
# prints the combinations and starts nothing.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"
require SLICES "names of TPU VM slices, separated by spaces"
[[ $# -ge 2 ]] || fail "expected a recipe and settings with several values: launch/sweep.sh RECIPE key=A,B ..."
recipe=$1
shift
name=$(basename "$recipe")
sweep=${SWEEP:-${name%.*}}
state=${STATE:-.sweep-$sweep}
launcher=${LAUNCHER:-$here/tpu_pod.sh}
fr3e=${FR3E:-$here/../.venv/bin/fr3e}
command -v "$fr3e" >/dev/null || fail "there is no program $fr3e; run \`make\` in the repository, or set FR3E to the fr3e command"

# fr3e checks and names every combination. The last word of a line is the run directory.
combinations=$("$fr3e" sweep "$recipe" "$@" --dry-run) || exit $?
mapfile -t lines <<<"$combinations"
if $DRY_RUN; then
  printf '%s\n' "${lines[@]}"
  exit
fi
mkdir -p "$state"
rm -f "$state"/*.taken

run_one() { # SLICE LINE: return 0 if the combination is finished, or taken by another slice
  local label words
  declare -a words
  eval "words=($2)" # quoted for a shell by fr3e sweep
  label=$(basename "${words[-1]#runtime.run_dir=}")
  unset "words[-1]"
  [[ ! -f $state/$label.done ]] || return 0
  # With noclobber only the first slice can make the file, so a combination goes to one slice.
  (set -o noclobber && echo "$1" >"$state/$label.taken") 2>/dev/null || return 0
  echo "$label: on $1, output in $state/$label.log"
  # The first four words are the program, -m, the module and the verb; the recipe follows.
  if TPU_NAME=$1 RUN=$sweep-$label "$launcher" "${words[@]:4}" >>"$state/$label.log" 2>&1 </dev/null; then
    touch "$state/$label.done"
    echo "$label: finished"
  else
    echo "$label: failed on $1; see $state/$label.log" >&2
    return 1
  fi
}

serve() { # SLICE: run one combination after another; a failed one does not end the slice's work
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
echo "${#done_files[@]} of ${#lines[@]} combinations are finished; the same command continues with the others"
exit "$worst"
