#!/usr/bin/env bash
# One machine: the run starts a Ray of its own and ends it, whatever else is on the machine.
#   examples/launch/one_machine.sh [RUN.YAML] [KEY=VALUE ...]
# Started again after it was cut off, it goes on from the newest checkpoint.
set -euo pipefail

RUN=${1:-examples/launch/run.yaml}
shift || true
DIRECTORY=${DIRECTORY:-runs/launch}

roll check "$RUN" "$@"
if [ -d "$DIRECTORY/checkpoints" ]; then
  roll resume "$DIRECTORY" ray.address=null "$@"
else
  roll train "$RUN" ray.address=null "$@" --overwrite
fi
