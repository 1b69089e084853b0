#!/usr/bin/env bash
# Several machines reachable by ssh: this machine becomes Ray's head node, and the machines in HOSTS join it.
#   HOSTS="node2 node3" examples/launch/several_machines.sh [RUN.YAML] [KEY=VALUE ...]
# Start it in a folder that all machines share under the same path, with roll installed in its .venv. At the end it
# stops the Ray processes that it started, and no others. Started again, it continues from the newest checkpoint.
set -euo pipefail

RUN=${1:-examples/launch/run.yaml}
shift || true
HOSTS=${HOSTS:?name the other machines, such as HOSTS="node2 node3"}
FOLDER=$PWD
HEAD=${HEAD:-$(hostname -I | cut -d " " -f 1)}
PORT=${PORT:-6379}

roll check "$RUN" "$@"
# All nodes share one secret. Anyone who has it can run code in this cluster.
RAY_AUTH_TOKEN=$(ray get-auth-token --generate)
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

STARTED=()
trap 'kill "${STARTED[@]}" 2>/dev/null || true; wait' EXIT

CPUS=${CPUS:+--num-cpus $CPUS}  # CPUs per machine; default: all
# shellcheck disable=SC2086
ray start --head --block --node-ip-address "$HEAD" --port "$PORT" --disable-usage-stats $CPUS &
STARTED+=($!)
timeout 600 bash -c "until ray health-check --address '$HEAD:$PORT' >/dev/null 2>&1; do sleep 0.5; done" ||
  { echo "Ray did not start on $HEAD:$PORT in 10 minutes; its logs are in /tmp/ray" >&2; exit 1; }
JOIN="read -rs RAY_AUTH_TOKEN; export RAY_AUTH_TOKEN RAY_AUTH_MODE=token; cd '$FOLDER' && . .venv/bin/activate;"
JOIN+=" ray start --block --address '$HEAD:$PORT' --disable-usage-stats $CPUS & trap \"kill \$!\" HUP INT TERM; wait"
for host in $HOSTS; do
  # The secret is sent through the connection: other users could read it on a command line.
  ssh -tt "$host" "exec bash -c $(printf %q "$JOIN")" <<<"$RAY_AUTH_TOKEN" &
  STARTED+=($!)
done

# Machines may join late: workers wait for free CPUs up to ray.start_timeout_s.
roll train "$RUN" "ray.address=$HEAD:$PORT" "$@" --resume --supervise
