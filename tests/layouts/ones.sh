#!/bin/bash
# ones.sh BUILD: a model whose every gradient is 1 (ones.lua): the gradient norm is the root of the number of elements, and
# each gradient is 1, in every layout. Shows what is counted twice, once for all shards, or not at all.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
quick_kernels
# elements: x's vectors, positions, tied table and head; in three of four layers q, o, up and down, their biases, the gain
whole=$((2 * 32 + 16 * 32 + 2 * 65 * 32 + 3 * (2 * 32 * 32 + 2 * 48 * 32 + 32 + 48 + 32 + 16 * 32 + 16)))
kv=$((3 * (8 * 32 + 8)))  # and k with its bias, half of which go with two heads
ones() { # NAME LAYOUT...
    local run=$work/ones-$1
    shift
    case $* in *kv=2*) count=$((whole - kv)) ;; *) count=$whole ;; esac
    timeout -k 5 60 "$build/picoc" "$layouts/ones.lua" --seq 16 --dtype f64 -o "$run.plan" "$@" >"$run.out" 2>&1 ||
        { bad "picoc ones.lua $*: $(grep -m 1 picoc: "$run.out" || head -n 1 "$run.out")"; return; }
    train "$run" 65 --steps 1 --clip 1 || return
    if ! "$compare" --ones "$run" 1e-12 >"$run.compare" 2>&1; then
        bad "$*: $(tail -n 1 "$run.compare")"
    elif ! grep -q "^$count gradients" "$run.compare"; then
        bad "$*: $(cat "$run.compare"), not $count"
    else ok; fi
    rm -f "$run".*
}

number=0
while read -r layout; do
    number=$((number + 1))
    job ones $number $layout
done <<'EOF'
--micro-batch 2
--micro-batch 1 --accum 4
--micro-batch 2 --tp 2 --sp
--micro-batch 2 --tp 2 --no-sp
--micro-batch 2 --tp 4 --sp
--micro-batch 2 --tp 4 --no-sp
--micro-batch 2 --tp 4 --sp -D kv=2 -D group=4
--micro-batch 2 --tp 4 --no-sp -D kv=2 -D group=4
--micro-batch 2 --tp 8 --sp
--micro-batch 2 --pp 2 --accum 3
--micro-batch 2 --pp 4
--micro-batch 2 --pp 4 --stages 1,1,1,1 --schedule zb --accum 2
--micro-batch 2 --pp 3 --stages 1,2,1 --schedule afab
--micro-batch 2 --pp 2 --schedule interleaved --accum 3
--micro-batch 2 --dp 2
--micro-batch 2 --dp 2 --zero 1
--micro-batch 1 --dp 3 --accum 2 --zero 1
--micro-batch 1 --dp 3 --bucket-mb 0.001
--micro-batch 1 --dp 2 --zero 1 --bucket-mb 0.001
--micro-batch 1 --pp 2 --dp 2 --zero 1
--micro-batch 1 --tp 2 --pp 2 --sp
--micro-batch 1 --tp 2 --pp 2 --no-sp --schedule zb --accum 3
--micro-batch 1 --tp 2 --dp 2 --zero 1
--micro-batch 1 --tp 2 --pp 2 --dp 2 --sp
--micro-batch 1 --tp 2 --pp 2 --dp 2 --sp --zero 1 --accum 2
--micro-batch 1 --tp 2 --pp 2 --dp 2 --no-sp --zero 1 --accum 2
--micro-batch 1 --tp 4 --pp 2 --dp 2 --zero 1 -D kv=2 -D group=4
--micro-batch 1 --tp 2 --pp 2 --dp 2 --recompute full --zero 1
--micro-batch 1 --tp 2 --pp 2 --dp 2 --no-fuse
EOF
finish
