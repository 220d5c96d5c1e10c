#!/bin/sh
# bits.sh BUILD: what must not change a single bit of losses, norms and weights: fusion, recomputation, poison in dead
# memory, the number of threads, the C compiler, a second run.
. "$(dirname "$0")/common.sh"
common="--seq 24 --micro-batch 3 --accum 2"
for m in llama llama-tied gpt2 qwen3 mlp muon; do
    for dtype in f32 bf16 f64; do
        # shellcheck disable=SC2086
        compile $m "$work/p" $common --dtype $dtype && train "$work/p" "$work/base" --steps 4 --lr 1e-2 --clip 0.5 || continue
        for way in "--no-fuse" "--recompute attention" "--recompute full" "--recompute full --no-fuse"; do
            # shellcheck disable=SC2086
            compile $m "$work/q" $common --dtype $dtype $way && train "$work/q" "$work/other" --steps 4 --lr 1e-2 --clip 0.5 &&
                same_bits "$m $dtype $way" "$work/base" "$work/other"
        done
        for way in "" "--poison" "--threads 1"; do
            # shellcheck disable=SC2086
            train "$work/p" "$work/other" --steps 4 --lr 1e-2 --clip 0.5 $way && same_bits "$m $dtype again $way" "$work/base" "$work/other"
        done
    done
    if command -v clang >/dev/null; then
        # shellcheck disable=SC2086
        compile $m "$work/p" $common && train "$work/p" "$work/base" --steps 4 --lr 1e-2 --clip 0.5 &&
            CC=clang train "$work/p" "$work/other" --steps 4 --lr 1e-2 --clip 0.5 && same_bits "$m with clang" "$work/base" "$work/other"
    else echo "no clang: gcc and clang are not compared"; fi
done
finish
