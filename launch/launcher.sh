# The beginning of every launcher: its folder in `here`, the shared checks, --help, and --dry-run before the other
# arguments. This file is sourced without arguments, so `shift` takes the option from those of the launcher.
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR
source "$here/require.sh"

DRY_RUN=false
case ${1:-} in
  --help | -h) # the comment at the head of the launcher
    sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "$0" | sed '/^set -euo/d'
    exit 0 ;;
  --dry-run) DRY_RUN=true && shift ;;
esac
