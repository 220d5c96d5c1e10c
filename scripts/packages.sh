#!/bin/sh
# packages.sh run|test: installs the Debian packages that building and running (run), or also the tests (test), need.
# Only what is missing is installed; as root, or through sudo.
set -eu
need="build-essential cmake ninja-build pkg-config liblua5.4-dev lua-lpeg-dev libdnnl-dev libcjson-dev libxxhash-dev
      libblas-dev graphviz gnuplot-nox"
[ "${1:-run}" = test ] && need="$need lua5.4 lua-lpeg libcmocka-dev clang libomp-dev python3 openmpi-bin"
missing=""
for package in $need; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
echo "installing:$missing"
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "packages.sh: run as root, or install by hand:$missing" >&2; exit 1; }
    as_root=sudo
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
