#!/bin/sh
# pictures.sh BUILD: Graphviz accepts the pictures of all levels; a 22-layer model stays under 400 boxes at the readable levels.
. "$(dirname "$0")/../training/common.sh"
boxes() { grep -c '^ *n[0-9]* \[' "$1"; }
for level in model layer op kernel; do
    for m in llama gpt2 mlp; do
        compile $m "$work/p" --seq 16 --dot "$work/g.dot" --dot-level $level || continue
        if dot -Tsvg "$work/g.dot" -o "$work/g.svg" 2>"$work/err" && [ ! -s "$work/err" ]; then ok; else bad "$m $level: $(head -n 1 "$work/err")"; fi
    done
done
for level in model layer; do
    "$build/picoc" "$top/graphs/llama.lua" --config "$top/graphs/tinyllama.json" --seq 64 --micro-batch 1 --dot "$work/g.dot" --dot-level $level -o "$work/p" || bad "tinyllama"
    n=$(boxes "$work/g.dot")
    [ "$n" -gt 3 ] && [ "$n" -lt 400 ] && ok || bad "tinyllama at level $level has $n boxes"
done
finish
