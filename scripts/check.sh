#!/bin/sh
# check.sh: installs what the tests need (Debian packages), builds everything and runs all tests.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh test
cmake --preset release -G Ninja -DPICO_TESTS=ON >/dev/null
cmake --build build
ctest --test-dir build --output-on-failure -j2 --no-tests=error
