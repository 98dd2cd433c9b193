#!/usr/bin/env bash
# Sees to it that a Docker engine answers: finds one, or installs and starts it where we may, or says what to do.
#
# An engine named by DOCKER_HOST is only looked for; the one at the default socket is also installed (Debian's docker.io)
# and started, if we are root on Debian or Ubuntu. It outlives this script.
set -euo pipefail

# Set differently by tests only: the machine's own engine must not be touched by them.
SOCKET=${ORS_HOST_ENGINE_SOCKET:-/var/run/docker.sock}
RUN_DIR=${ORS_HOST_ENGINE_RUN_DIR:-/var/run}
LOG=${ORS_HOST_ENGINE_LOG:-/var/log/ors-host-dockerd.log}
read -r -a DOCKERD <<<"${ORS_HOST_DOCKERD:-dockerd}"
DEADLINE_S=${ORS_HOST_ENGINE_DEADLINE_S:-90}

say() { echo "engine: $*"; }
die() {
    echo "engine: $*" >&2
    exit 1
}

# Prints "OK" if an engine answers at $1 (a DOCKER_HOST), else why it does not.
ping_engine() {
    python3 - "$1" <<'PYTHON'
import socket, sys
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
if url.scheme not in ("unix", "tcp", "http"):
    sys.exit(print("OK"))  # ssh and the like: the first real use tells
try:
    if url.scheme == "unix":
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(5)
        peer.connect(url.path)
    else:
        peer = socket.create_connection((url.hostname, url.port or 2375), timeout=5)
    peer.settimeout(5)
    peer.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
    answer = peer.makefile("rb").read(4096)
except OSError as exc:
    sys.exit(print(exc.strerror or exc))
# A TLS port answers plain HTTP with an error; that an engine listens there is all we ask.
print("OK" if b"200 OK" in answer or b"400 Bad Request" in answer else "it speaks something else")
PYTHON
}

# The process in pid file $1, if it lives and is called $2.
running() {
    local pid
    pid=$(cat "$1" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ]
}

# What the log ends with, in one line.
last_words() {
    { tail -n 20 "$LOG" | grep -iE 'fail|error|unable|invalid' || tail -n 1 "$LOG"; } 2>/dev/null | tail -n 1
}

install_engine() {
    say "installing docker.io with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    local packages=(docker.io iptables ca-certificates)
    # New machines have no package lists, older ones may have stale ones: either way the first try fails.
    apt-get install -y -q --no-install-recommends "${packages[@]}" </dev/null >>"$LOG" 2>&1 || {
        say "updating the package lists"
        apt-get update -q </dev/null >>"$LOG" 2>&1
        apt-get install -y -q --no-install-recommends "${packages[@]}" </dev/null >>"$LOG" 2>&1
    } || die "docker.io could not be installed, see $LOG: $(last_words)"
}

start_engine() {
    if [ -d /run/systemd/system ] && [ "${DOCKERD[*]}" = dockerd ]; then
        say "starting docker.service"
        systemctl start docker </dev/null || die "docker.service does not start: see 'journalctl -u docker'"
        return
    fi
    if running "$RUN_DIR/docker.pid" dockerd; then
        say "dockerd is starting already"
        return
    fi
    # What a killed engine leaves behind: a number that by now may belong to another process.
    rm -f "$RUN_DIR/docker.pid"
    running "$RUN_DIR/docker/containerd/containerd.pid" containerd || rm -f "$RUN_DIR/docker/containerd/containerd.pid"
    say "starting dockerd (log: $LOG)"
    (
        # Held open, the caller's pipes (make, CI) would wait for the engine's end.
        for fd in /proc/self/fd/*; do
            fd=${fd##*/}
            if [ "$fd" -gt 2 ] && [ "$fd" -ne 255 ]; then eval "exec $fd>&-"; fi
        done
        cd /
        exec setsid "${DOCKERD[@]}" </dev/null >>"$LOG" 2>&1
    ) &
    dockerd_pid=$!
}

if [ -n "${DOCKER_HOST:-}" ]; then
    answer=$(ping_engine "$DOCKER_HOST")
    [ "$answer" = OK ] || die "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST ($answer): start that engine, or unset DOCKER_HOST"
    say "answers at $DOCKER_HOST"
    exit 0
fi

answer=$(ping_engine "unix://$SOCKET")
if [ "$answer" = OK ]; then
    say "answers at $SOCKET"
    exit 0
fi
if [ "$answer" = "Permission denied" ]; then
    die "this user may not use the Docker engine at $SOCKET: join the group 'docker' and log in again, or run this as root"
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    die "no Docker engine answers at $SOCKET ($answer): install and start Docker, or run this as root on Debian or Ubuntu, or set DOCKER_HOST"
fi

exec {lock}>"$RUN_DIR/ors-host-engine.lock" # two `make` at once: the second finds the engine that the first started
flock "$lock"
command -v "${DOCKERD[0]}" >/dev/null || install_engine
deadline=$((SECONDS + DEADLINE_S))
dockerd_pid=
[ "$(ping_engine "unix://$SOCKET")" = OK ] || start_engine
until [ "$(ping_engine "unix://$SOCKET")" = OK ]; do
    if [ -n "$dockerd_pid" ] && ! kill -0 "$dockerd_pid" 2>/dev/null; then
        die "dockerd does not stay up, see $LOG: $(last_words)"
    fi
    [ "$SECONDS" -lt "$deadline" ] || die "dockerd does not answer within $DEADLINE_S s, see $LOG: $(last_words)"
    sleep 0.3
done
say "answers at $SOCKET"
