#!/bin/sh
# determinism.sh BUILD: 20 compiles of one input give the same bytes, whatever the output is called and wherever one stands.
. "$(dirname "$0")/../training/common.sh"
for m in llama gpt2 qwen3 mlp muon; do
    compile $m "$work/first" --seq 16 --dtype bf16 || continue
    same=1
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
        (cd "$work" && compile $m "$work/name-$i" --seq 16 --dtype bf16 && cmp -s "$work/first" "$work/name-$i") || same=0
        rm -f "$work/name-$i"
    done
    mkdir -p "$work/elsewhere" && cp -r "$top/graphs" "$work/elsewhere"
    (top=$work/elsewhere; compile $m "$work/moved" --seq 16 --dtype bf16) && cmp -s "$work/first" "$work/moved" || same=0
    [ $same = 1 ] && ok || bad "$m: plans differ"
done
finish
