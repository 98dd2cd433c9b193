#!/usr/bin/env bash
# Makes a virtual environment with pip in it: venv.sh PYTHON FOLDER. One that works already is left as it is.
set -euo pipefail

python=$1
folder=$2

die() {
    echo "venv: $*" >&2
    exit 1
}

if "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi
command -v "$python" >/dev/null || die "there is no $python: install Python 3.11 or newer, or name one with 'make PYTHON=…'"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" --version) is too old: Python 3.11 or newer is needed; name one with 'make PYTHON=…'"

# Debian's Python comes without ensurepip; a package brings it.
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        die "$python can't make virtual environments: install its 'venv' package (on Debian: apt-get install python$version-venv)"
    echo "venv: installing python$version-venv with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    install=(apt-get install -y -qq --no-install-recommends "python$version-venv" ca-certificates)
    "${install[@]}" </dev/null >/dev/null 2>&1 ||
        { apt-get update -qq </dev/null && "${install[@]}" </dev/null >/dev/null; } ||
        die "python$version-venv could not be installed"
fi
echo "venv: making $folder with $("$python" --version)"
"$python" -m venv --clear "$folder"
