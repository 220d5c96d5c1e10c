#!/bin/bash
# mpi.sh BUILD: ranks as MPI processes: the cases of test_coll.c, bit for bit; a wrong number of processes; a rank that aborts;
# a rank that is killed. Skipped where there is no mpirun.
set -u
test_coll=$1/tests/test_coll
command -v mpirun > /dev/null || exit 77
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
fail() { echo "FAIL: $*"; failed=1; }
start() { exec mpirun --allow-run-as-root --oversubscribe -n "$@"; }
run() { (start "$@") > "$scratch/out" 2>&1; }

for ranks in 1 2 3 4 6 8; do
    run $ranks "$test_coll" || { fail "$ranks ranks"; cat "$scratch/out"; }
done
run 3 "$test_coll" chunks || { fail "messages in chunks"; cat "$scratch/out"; }

run 2 "$test_coll" wrong && fail "a wrong number of processes is accepted"
said=$(grep -c '^test_coll: the plan has 3 ranks, but the MPI launcher started 2 processes$' "$scratch/out")
[ "$said" = 1 ] || { fail "a wrong number of processes is explained $said times"; cat "$scratch/out"; }

SECONDS=0
run 4 "$test_coll" abort && fail "abort() ends with success"
grep -q '^rank 3 gives up' "$scratch/out" || fail "the first error is not shown"
grep -q '^rank [012]' "$scratch/out" && fail "other ranks complain after an abort"
[ $SECONDS -le 10 ] || fail "abort() took $SECONDS s"

(start 4 "$test_coll" hang) > "$scratch/out" 2>&1 &
launcher=$!
for _ in $(seq 100); do
    grep -q ready "$scratch/out" && break
    sleep 0.1
done
SECONDS=0
kill -9 "$(pgrep -P $launcher | tail -1)"
wait $launcher && fail "a killed rank passes for success"
[ $SECONDS -le 10 ] || fail "the others ended $SECONDS s after a killed rank"
exit $failed
