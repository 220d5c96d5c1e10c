#!/bin/bash
# valid.sh BUILD: micro-batches and data-parallel ranks with unequal numbers of targets, or none (valid.lua): losses, norms,
# gradients and weights of every layout are those of one rank. A mean of means fails here.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
quick_kernels
lua5.4 "$layouts/valid.lua" 16 >"$work/text65"
training="--steps 5 --ignore 32 --eps 1e-3 --clip 1"
layout() { # MODEL NUMBER LAYOUT...
    local model=$1 run=$work/$1-$2
    shift 2
    plan "$run" "$model" 4 65 --dtype f64 "$@" && train "$run" 65 $training &&
        same "$model $*" "$work/one-$model" "$run" --loss 1e-12 --norm 1e-12 --grads 1e-12 --params 1e-12
    rm -f "$run".*
}
for model in llama-tied gpt2; do
    plan "$work/one-$model" $model 4 65 --dtype f64 --micro-batch 2 --accum 6 && train "$work/one-$model" 65 $training || continue
    number=0
    while read -r line; do
        number=$((number + 1))
        job layout $model $number $line
    done <<'EOF'
--micro-batch 1 --accum 12
--micro-batch 4 --accum 3
--micro-batch 2 --accum 3 --dp 2
--micro-batch 6 --accum 1 --dp 2 --zero 1
--micro-batch 1 --accum 4 --dp 3
--micro-batch 2 --accum 6 --tp 2
--micro-batch 1 --accum 12 --pp 2
--micro-batch 2 --accum 6 --pp 4 --schedule zb
--micro-batch 2 --accum 3 --tp 2 --pp 2 --dp 2 --zero 1
--micro-batch 1 --accum 6 --tp 2 --pp 2 --dp 2 --no-sp --schedule interleaved
EOF
done
finish
