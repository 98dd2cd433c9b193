#!/usr/bin/env bash
# Gives the Docker engine of this machine gVisor's OCI runtime, for `ors-host --isolation gvisor`: installs Debian's runsc where
# there is none, names it in daemon.json and has the running engine read that again. No restart, no container disturbed.
set -euo pipefail

CONFIG=${ORS_HOST_ENGINE_CONFIG:-/etc/docker/daemon.json}
PID_FILE=${ORS_HOST_ENGINE_PID_FILE:-/var/run/docker.pid}
# The network is the engine's business, and the only socket that a container may open is one that the host put there.
ARGS='["--platform=ptrace", "--network=none", "UDS"]'

die() {
    echo "gvisor: $*" >&2
    exit 1
}

registered() { docker info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}' 2>/dev/null | grep -qw runsc; }

if registered; then
    echo "gvisor: the engine has it"
    exit 0
fi
[ "$(id -u)" = 0 ] || die "the engine does not have the runtime runsc; run this as root, or register it by hand"
if ! command -v runsc >/dev/null; then
    command -v apt-get >/dev/null || die "install gVisor (runsc) first: https://gvisor.dev/docs/user_guide/install"
    echo "gvisor: installing runsc with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends runsc </dev/null >/dev/null 2>&1 || {
        apt-get update -q </dev/null >/dev/null 2>&1
        apt-get install -y -q --no-install-recommends runsc </dev/null >/dev/null
    } || die "runsc could not be installed"
fi
# Releases before 2023 know the older flag only; later ones say that it is deprecated.
if runsc flags 2>&1 | grep -q -- -host-uds; then uds=--host-uds=open; else uds=--fsgofer-host-uds; fi
mkdir -p "$(dirname "$CONFIG")"
python3 - "$CONFIG" "$(command -v runsc)" "${ARGS/UDS/$uds}" <<'PYTHON'
import json, os, sys

path, program, args = sys.argv[1:]
config = json.loads(open(path).read() or "{}") if os.path.exists(path) else {}
config.setdefault("runtimes", {})["runsc"] = {"path": program, "runtimeArgs": json.loads(args)}
with open(path + ".new", "w") as file:
    json.dump(config, file, indent=4)
os.replace(path + ".new", path)
PYTHON
if [ -d /run/systemd/system ]; then systemctl reload docker; else kill -HUP "$(cat "$PID_FILE")"; fi
for _ in $(seq 50); do
    if registered; then
        echo "gvisor: the engine has it now"
        exit 0
    fi
    sleep 0.2
done
die "the engine did not take up $CONFIG"
