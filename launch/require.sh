# Checks that the launchers share. This file is sourced, not executed.
# shellcheck shell=bash

# fail MESSAGE...: print one line on stderr and exit with code 2, as for any mistake of the user.
fail() {
  echo "$(basename "$0"): error: $*" >&2
  exit 2
}

# require NAME MEANING: the variable must be set and not empty.
require() {
  [[ -n ${!1:-} ]] || fail "$1 is not set; expected $2"
}

# require_match NAME PATTERN MEANING: the whole value must match the extended regular expression.
require_match() {
  require "$1" "$3"
  [[ ${!1} =~ ^($2)$ ]] || fail "$1=${!1} does not look like $3"
}

# require_program NAME HINT: the program must be on PATH.
require_program() {
  command -v "$1" >/dev/null || fail "$1 is not on PATH; $2"
}

# check_recipe ARGUMENTS...: load the recipe and its settings here, so that a mistake costs a line and no machine.
check_recipe() {
  local fr3e=${FR3E:-$here/../.venv/bin/fr3e}
  if command -v "$fr3e" >/dev/null; then
    "$fr3e" train "$@" --print-config >/dev/null || exit 2
  else
    echo "$(basename "$0"): note: the recipe is not checked, because there is no program $fr3e here; run \`make\`" >&2
  fi
}

# share_programs DIR ARGUMENTS...: let all hosts use one folder of compiled programs, which process 0 writes. A folder
# that the arguments or the environment name stays.
share_programs() {
  [[ " ${*:2} " == *" runtime.compilation_cache="* ]] ||
    export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$1}
}

# run COMMAND...: run it; with DRY_RUN=true print it in place of that.
run() {
  if $DRY_RUN; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

# read_secrets: put into the array `secrets` the names of SECRETS, or those of HF_TOKEN and WANDB_API_KEY that are set.
read_secrets() {
  local name
  secrets=()
  for name in ${SECRETS-HF_TOKEN WANDB_API_KEY}; do
    [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || fail "SECRETS has $(printf %q "$name"); expected names of variables, such as HF_TOKEN"
    if [[ -n ${!name:-} ]]; then
      [[ ${!name} != *$'\n'* ]] || fail "the value of $name has several lines; expected one"
      secrets+=("$name")
    elif [[ -n ${SECRETS:-} ]]; then
      fail "SECRETS names $name, which is not set; export it, or leave it out"
    fi
  done
}

# cloud_advice REASON: the next step of a user to whom a program of the cloud gave this reason.
cloud_advice() {
  case ${1,,} in
    *"auth login"* | *"active account"* | *redential* | *unauthenticated* | *eauthenticat* | *unauthorized* | *"logged in"*)
      echo "you are not logged in: gcloud auth login, and for a cluster gcloud container clusters get-credentials" ;;
    *) echo "mend what it says" ;;
  esac
}
