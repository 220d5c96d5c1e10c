#!/bin/sh
# pictures.sh BUILD: Graphviz accepts the pictures of all levels; a 22-layer model stays under 400 boxes at
# the readable levels, and the default one within its limits of boxes and width (points) at the levels with all nodes.
# Pictures of several stages have what crosses, collectives and buckets.
. "$(dirname "$0")/../training/common.sh"
boxes() { grep -c '^ *n[0-9_]* \[' "$1"; }
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

accepted() { # WHAT: Graphviz takes g.dot and says nothing
    if timeout 120 dot -Tsvg "$work/g.dot" -o "$work/g.svg" 2>"$work/err" && [ ! -s "$work/err" ]; then ok; else bad "$1: $(head -n 1 "$work/err")"; fi
}
has() { # PATTERN NUMBER WHAT
    n=$(grep -c -e "$1" "$work/g.dot")
    [ "$n" = "$2" ] && ok || bad "$3: $n lines with '$1', not $2"
}
layouts() { # MODEL EXTRA...: all levels are accepted
    for level in model layer kernel; do
        # shellcheck disable=SC2086
        compile "$@" --seq 16 --micro-batch 2 --dot "$work/g.dot" --dot-level $level && accepted "$*, $level"
    done
}
layouts llama "$work/p" --tp 2 --pp 3 --dp 2 --accum 2
layouts llama-tied "$work/p" --pp 2 --dp 2 --zero 1 --accum 2 --schedule zb
layouts gpt2 "$work/p" --tp 4
compile llama "$work/p" --seq 16 --micro-batch 2 -D num_hidden_layers=2 --tp 2 --pp 2 --dot "$work/g.dot" --dot-level op && accepted "op of two stages"
compile llama "$work/p" --seq 16 --micro-batch 2 -D num_hidden_layers=4 --pp 2 --virtual 2 --accum 2 --dot "$work/g.dot" && accepted "chunks"
has 'label="SEND ' 3 "4 chunks on 2 stages"
"$build/picoc" "$top/graphs/llama.lua" --config "$top/graphs/tinyllama.json" --seq 64 --micro-batch 1 --tp 2 --pp 2 --dp 2 --dot "$work/g.dot" || bad "tinyllama, tp 2 pp 2"
n=$(boxes "$work/g.dot")
[ "$n" -gt 40 ] && [ "$n" -lt 400 ] && ok || bad "tinyllama, tp 2 pp 2 has $n boxes"
accepted "tinyllama, tp 2 pp 2"
has 'subgraph cluster_stage' 2 "tinyllama, tp 2 pp 2"
has 'label="SEND .*back: ' 1 "tinyllama, tp 2 pp 2"
has 'label="RECV from stage 0' 1 "tinyllama, tp 2 pp 2"
# shown in full: the first layer of each stage, the embedding, the head; four gathers and sums a layer
has 'shape=house.*all-gather over tp (2)' 5 "tinyllama, tp 2 pp 2"
has 'shape=invhouse.*reduce-scatter over tp (2)' 5 "tinyllama, tp 2 pp 2"
has 'shape=box3d.*bucket of' "$("$build/picoc" "$top/graphs/llama.lua" --config "$top/graphs/tinyllama.json" --seq 64 --micro-batch 1 --tp 2 --pp 2 --dp 2 --report | grep -c '; begins in ')" "tinyllama, tp 2 pp 2"
finish
