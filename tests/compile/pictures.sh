#!/bin/sh
# pictures.sh BUILD: Graphviz accepts the pictures of all levels; a 22-layer model stays under 400 boxes at
# the readable levels, and the default one within its limits of boxes and width (points) at the levels with all nodes.
. "$(dirname "$0")/../training/common.sh"
boxes() { grep -c '^ *n[0-9]* \[' "$1"; }
for level in model layer op kernel; do
    for m in llama gpt2 mlp muon qwen3; do
        compile $m "$work/p" --seq 16 --dot "$work/g.dot" --dot-level $level || continue
        if dot -Tsvg "$work/g.dot" -o "$work/g.svg" 2>"$work/err" && [ ! -s "$work/err" ]; then ok; else bad "$m $level: $(head -n 1 "$work/err")"; fi
    done
done
for level in model layer; do
    "$build/picoc" "$top/graphs/llama.lua" --config "$top/graphs/tinyllama.json" --seq 64 --micro-batch 1 --dot "$work/g.dot" --dot-level $level -o "$work/p" || bad "tinyllama"
    n=$(boxes "$work/g.dot")
    [ "$n" -gt 3 ] && [ "$n" -lt 400 ] && ok || bad "tinyllama at level $level has $n boxes"
done
for limits in "op 250 4500" "kernel 120 3000"; do
    set -- $limits
    "$build/picoc" "$top/graphs/llama.lua" --dot "$work/g.dot" --dot-level "$1" -o "$work/p" || bad "llama $1"
    "$build/picoc" "$top/graphs/llama.lua" --dot "$work/again.dot" --dot-level "$1" -o "$work/p" || bad "llama $1"
    cmp -s "$work/g.dot" "$work/again.dot" && ok || bad "llama $1: two pictures"
    n=$(boxes "$work/g.dot") w=$(dot -Tsvg "$work/g.dot" | sed -n 's/^<svg width="\([0-9]*\).*/\1/p')
    [ "$n" -lt "$2" ] && [ "$w" -lt "$3" ] && ok || bad "llama $1: $n boxes, $w points wide"
done
finish
