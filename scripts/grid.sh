#!/bin/sh
# grid.sh [OPTION=VALUE...]: every layout of tests/layouts/pairs.lua against one rank, some 38000 of them: hours, or days.
# Ends with a table of the worst differences. Results stay in build/grid, and the next call goes on with what is missing or
# failed; OPTION=VALUE keeps the layouts with that word:
#
#     scripts/grid.sh model=gpt2 pp=3 layers=5
#
# GRID_LIST=pairs or triples: a sample (every two, or three, values that may stand together). Remove build/grid after a
# change of the programs.
set -eu
cd "$(dirname "$0")/.."
GRID_DIR=build/grid exec tests/layouts/grid.sh build "${GRID_LIST:-full}" "$@"
