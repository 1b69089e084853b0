#!/usr/bin/env bash
# Several machines that you reach by ssh: this one is the head, the others join it, the run goes, and all of it ends.
#   HOSTS="node2 node3" examples/launch/several_machines.sh [RUN.YAML] [KEY=VALUE ...]
# Start it in a folder that every machine sees under the same path, with roll in its .venv. Nothing that runs there
# besides is touched: what is started here is ended by the same connection that has started it.
set -euo pipefail

RUN=${1:-examples/launch/run.yaml}
shift || true
HOSTS=${HOSTS:?name the other machines, such as HOSTS="node2 node3"}
DIRECTORY=${DIRECTORY:-runs/launch}
FOLDER=$PWD
HEAD=${HEAD:-$(hostname -I | cut -d " " -f 1)}
PORT=${PORT:-6379}

roll check "$RUN" "$@"
# One secret for all of them: whoever has it may run code in this cluster.
RAY_AUTH_TOKEN=$(ray get-auth-token --generate)
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

STARTED=()
trap 'kill "${STARTED[@]}" 2>/dev/null || true; wait' EXIT

CPUS=${CPUS:+--num-cpus $CPUS}  # of each machine; by default all that it has
# shellcheck disable=SC2086
ray start --head --block --node-ip-address "$HEAD" --port "$PORT" --disable-usage-stats $CPUS &
STARTED+=($!)
until ray health-check --address "$HEAD:$PORT" >/dev/null 2>&1; do sleep 0.5; done
JOIN="read -rs RAY_AUTH_TOKEN; export RAY_AUTH_TOKEN RAY_AUTH_MODE=token; cd '$FOLDER' && . .venv/bin/activate;"
JOIN+=" ray start --block --address '$HEAD:$PORT' --disable-usage-stats $CPUS & trap \"kill \$!\" HUP INT TERM; wait"
for host in $HOSTS; do
  # The secret goes through the connection, not through a command line, where others could read it.
  ssh -tt "$host" "exec bash -c $(printf %q "$JOIN")" <<<"$RAY_AUTH_TOKEN" &
  STARTED+=($!)
done

# Workers that find no room yet wait for the machines that are still joining, up to ray.start_timeout_s.
if [ -d "$DIRECTORY/checkpoints" ]; then
  roll resume "$DIRECTORY" "ray.address=$HEAD:$PORT" "$@"
else
  roll train "$RUN" "ray.address=$HEAD:$PORT" "$@" --overwrite
fi
