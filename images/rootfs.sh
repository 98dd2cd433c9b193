#!/usr/bin/env bash
# Writes a root filesystem made of Debian's (or Ubuntu's) packages, as a tar archive.
#
#   images/rootfs.sh FILE.tar
#
# For machines that can pull no image: it takes the place of python:3.12-slim, so it has what that has and people count
# on (python, python3, pip, bash, coreutils, util-linux, certificates, apt). The release and the package mirrors are those
# of this machine. mmdebstrap does the work and is installed where it is missing and we are root.
set -euo pipefail

PACKAGES=bash,ca-certificates,passwd,python-is-python3,python3,python3-pip,util-linux

die() {
    echo "rootfs.sh: $*" >&2
    exit 1
}

[ $# -eq 1 ] || die "usage: rootfs.sh FILE.tar"
output=$1
export DEBIAN_FRONTEND=noninteractive

command -v apt-get >/dev/null || die "this machine has no apt: a root filesystem can only be made on Debian or Ubuntu"
# shellcheck source=/dev/null
. /etc/os-release
[ -n "${VERSION_CODENAME:-}" ] || die "/etc/os-release names no release (VERSION_CODENAME)"

# The distribution's own sources, in apt's one-line form; third parties' are left out.
sources() {
    apt-get indextargets --format '$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -n -E 's/^(Debian|Ubuntu)\|//p' | sort -u
}

if ! command -v mmdebstrap >/dev/null; then
    [ "$(id -u)" = 0 ] || die "mmdebstrap is missing: run 'apt-get install mmdebstrap' as root"
    apt-get install -y -q --no-install-recommends mmdebstrap </dev/null ||
        { apt-get update -q </dev/null && apt-get install -y -q --no-install-recommends mmdebstrap </dev/null; }
fi
mirrors=$(sources)
if [ -z "$mirrors" ]; then # apt does not know whose they are before it has read their indices
    [ "$(id -u)" = 0 ] || die "apt has no package lists: run 'apt-get update' as root"
    apt-get update -q </dev/null
    mirrors=$(sources)
fi
[ -n "$mirrors" ] || die "apt is set up with no source of Debian or Ubuntu"

options=(
    --variant=apt --include="$PACKAGES" --skip=output/dev
    --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"'
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright'
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*'
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/i18n/*'
    # An image is nobody's workstation: pip may install into it, as it may in python:3.12-slim.
    --customize-hook='rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED'
)
while read -r proxy; do # the machine's proxies, which mmdebstrap does not take over
    options+=(--aptopt="$proxy")
done < <(apt-config dump --format '%f "%v";%n' Acquire::http::Proxy Acquire::https::Proxy | grep -v '""' || true)

mmdebstrap "${options[@]}" "$VERSION_CODENAME" "$output" - <<<"$mirrors"
