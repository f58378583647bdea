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
