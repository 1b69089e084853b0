#!/usr/bin/env bash
# One machine: the run starts a local Ray cluster and stops it at the end. Other Ray clusters are not affected.
#   examples/launch/one_machine.sh [RUN.YAML] [KEY=VALUE ...]
# A crash is resumed at once. Start it again after an interruption: it continues from the newest checkpoint.
set -euo pipefail

RUN=${1:-examples/launch/run.yaml}
shift || true

roll check "$RUN" "$@"
roll train "$RUN" ray.address=null "$@" --resume --supervise
