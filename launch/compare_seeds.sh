#!/usr/bin/env bash
# Run the comparison in docs/users/results.md: FR3E, GRPO++ and the hybrid, three seeds each, from the same warm start
# with the same budget of sampled tokens. It takes about 25 minutes on 2 CPU cores.
# Usage: launch/compare_seeds.sh [key=value ...]
set -euo pipefail
cd "$(dirname "$0")/.."
for recipe in demo demo_grpo demo_hybrid; do
  .venv/bin/fr3e sweep "configs/$recipe.yaml" seed=0,1,2 runtime.console=plain "$@"
done
