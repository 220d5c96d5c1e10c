#!/bin/bash
# counts.sh BUILD: what picoc --report says of layouts, held against what the design promises (collectives, slots,
# activations, optimizer states), what picorun counts in a step on the null device, and what it allocates. Also: plans of
# 1,024 ranks, and how long a model of 126 layers takes to compile. The arithmetic is in counts.lua.
# shellcheck disable=SC2086,SC2046,SC2154  # options are words; common.sh sets build, top, work, layouts
. "$(dirname "$0")/common.sh"

# report OUT MODEL LAYERS EXTRA...: OUT.plan, OUT.json
report() {
    o=$1 m=$2 l=$3
    shift 3
    plan "$o" "$m" "$l" 256 --report="$o.json" "$@"
}
# check WHAT ARGUMENTS...: counts.lua finds no fault
check() {
    what=$1
    shift
    faults=$(lua5.4 "$layouts/counts.lua" "$@" 2>&1)
    if [ -z "$faults" ]; then ok; else bad "$what: $(echo "$faults" | head -n 3 | paste -sd ';')"; fi
}

# (a) collectives
formula() { # MODEL LAYERS sp|no-sp none|full EXTRA...
    r=$work/$(echo "$*" | tr -c 'a-z0-9\n' _) model=$1 layers=$2 sp=$3 recompute=$4
    shift 4
    report "$r" $model $layers --micro-batch 2 --$sp --recompute $recompute --accum 3 "$@" || return
    check "$model, $layers layers, $sp, recompute $recompute, $*" formula "$r.json" $layers $sp $recompute 3
    rm -f "$r".*
}
for layers in 2 4 6; do
    for tp in 2 4 8; do
        for sp in sp no-sp; do
            for model in llama llama-kv2 gpt2; do
                for pp in 1 2; do job formula $model $layers $sp none --tp $tp --pp $pp; done
            done
        done
    done
    for sp in sp no-sp; do
        job formula llama $layers $sp full --tp 4 --pp 1
        job formula llama-kv2 $layers $sp full --tp 4 --pp 2
        job formula gpt2 $layers $sp full --tp 2 --pp 2
        job formula llama $layers $sp none --tp 2 --pp 2 --schedule zb
        job formula llama $layers $sp none --tp 4 -D num_key_value_heads=1
        job formula llama $layers $sp none --tp 2 --pp 2 --dp 3 --bucket-mb 0.001
    done
done

# (b) what a step counts, and what is allocated
counted() { # NAME MODEL LAYERS EXTRA...
    r=$work/counted-$1
    shift
    report "$r" "$@" || return
    "$build/picorun" "$r.plan" --device null --steps 1 --counts "$r.counts" >"$r.out" 2>&1 || bad "counts of $*: $(tail -n 1 "$r.out")"
    check "$*" same "$r.json" "$r.counts"
    check "$*" slots "$r.json"
}
big="-D hidden_size=384 -D intermediate_size=1024 -D num_attention_heads=8 -D num_key_value_heads=4 -D head_dim=48"
allocated() { # NAME EXTRA...
    r=$work/allocated-$1
    shift
    "$build/picoc" "$top/graphs/llama.lua" $big --seq 64 --micro-batch 2 -o "$r.plan" --report="$r.json" "$@" >"$r.out" 2>&1 ||
        { bad "picoc big $*: $(head -n 1 "$r.out")"; return; }
    "$build/picorun" "$r.plan" --steps 0 --threads 1 >"$r.out" 2>&1 || bad "picorun big $*: $(tail -n 1 "$r.out")"
    check "allocated, $*" memory "$r.json" "$(sed -n 's/.*at most \([0-9.]*\) MB a rank.*/\1/p' "$r.out")" 1
    rm -f "$r".*
}
i=0
while read -r model layers options; do
    i=$((i + 1))
    job counted $i $model $layers $options
    [ "$model" = llama ] && job allocated $i -D num_hidden_layers=$layers $options
done <<'END'
llama 2 --tp 2
llama 4 --pp 4 --accum 8
llama 4 --pp 4 --accum 2
llama-tied 4 --tp 2 --pp 2 --dp 2 --accum 4
llama-tied 4 --pp 4 --dp 2 --zero 1 --accum 2
llama-kv2 4 --tp 4 --pp 2 --accum 4 --schedule zb
llama 6 --pp 3 --accum 7 --schedule zb
llama 8 --tp 2 --pp 4 --accum 6 --schedule zb --dp 2 --zero 1
llama 8 --pp 4 --accum 8 --schedule interleaved
llama-kv2 9 --tp 2 --pp 3 --accum 6 --virtual 3 --dp 2 --zero 1
gpt2 4 --tp 2 --pp 2 --dp 2 --accum 2 --bucket-mb 0
llama 4 --tp 2 --dp 3 --zero 1 --bucket-mb 0
gpt2 6 --tp 2 --pp 3 --accum 4 --schedule afab --recompute full
llama 4 --tp 2 --pp 2 --accum 3 --no-sp --recompute attention
llama 4 --dp 4 --accum 2
END

# (c) what a layer leaves for backward
wide="$top/graphs/llama.lua -D hidden_size=512 -D intermediate_size=1376 -D num_attention_heads=8 -D num_key_value_heads=8 -D num_hidden_layers=3"
saved() {
    "$build/picoc" $wide --seq 128 --micro-batch 1 --tp $1 --report="$work/saved-$1.json" >"$work/saved.out" 2>&1 || bad "picoc wide, tp $1"
}
saved 1
for tp in 2 4 8; do
    saved $tp
    check "tp $tp" saved "$work/saved-$tp.json" $tp "$work/saved-1.json"
done

# (d) optimizer states under --zero 1
for layout in "--dp 2" "--dp 4 --tp 2" "--dp 3 --tp 2 --pp 2"; do
    for zero in 0 1; do
        "$build/picoc" $wide --seq 64 --micro-batch 1 $layout --zero $zero --report="$work/zero-$zero.json" >"$work/zero.out" 2>&1 ||
            bad "picoc wide, zero $zero: $(head -n 1 "$work/zero.out")"
    done
    check "zero 1, $layout" zero "$work/zero-1.json" "$work/zero-0.json"
done

# (f) many ranks; plans don't grow with dp
report "$work/many" llama 32 --tp 8 --pp 16 --dp 8 --accum 16 -D num_key_value_heads=8
"$build/picorun" "$work/many.plan" --device null --counts "$work/many.counts" --steps 1 >"$work/many.out" 2>&1 || bad "1024 ranks: $(tail -n 1 "$work/many.out")"
check "1024 ranks" same "$work/many.json" "$work/many.counts"
grep -q '^in all: 1024 ranks' "$work/many.out" && ok || bad "1024 ranks: $(tail -n 1 "$work/many.out")"
for dp in 2 64; do report "$work/dp$dp" llama 4 --tp 2 --pp 2 --dp $dp; done
small=$(stat -c %s "$work/dp2.plan") large=$(stat -c %s "$work/dp64.plan")
[ $((100 * large)) -le $((101 * small)) ] && ok || bad "the plan grows with dp: $small bytes, $large bytes"

# what a line moves between ranks: a sum at the output projection, and what the last line of a layer sends, on all stages
explain() { # PATTERN NUMBER LINE
    line=$(grep -n -m 1 -e "$3" "$top/graphs/llama.lua" | cut -d : -f 1)
    n=$("$build/picoc" $(model llama 4 256) --seq 16 --micro-batch 2 --tp 2 --pp 2 --explain "llama.lua:$line" | grep -c -e "$1")
    [ "$n" = "$2" ] && ok || bad "explain line $line: $n lines with '$1', not $2"
}
explain '^  x 2  layers [02]..[13]  F      reduce-scatter   4.10 kB  over tp (2), each micro-batch: ' 2 'o_proj'
explain '^       layer 1      F      send             2.05 kB  to stage 1, each micro-batch$' 1 'down_proj'
explain '^       layer 1      F      receive          2.05 kB  from stage 0, each micro-batch$' 1 'down_proj'
explain '^total .*B a step$' 2 'down_proj'

# (g) time to compile; 3 s are meant, 6 s are a failure: machines are noisy
wait
start=$(date +%s%N)
"$build/picoc" "$top/graphs/llama.lua" -D num_hidden_layers=126 --seq 64 --micro-batch 1 --accum 32 --tp 8 --pp 16 -D num_attention_heads=16 \
    -D num_key_value_heads=8 -D head_dim=16 -o "$work/deep.plan" >"$work/deep.out" 2>&1 || bad "126 layers: $(head -n 1 "$work/deep.out")"
ms=$((($(date +%s%N) - start) / 1000000))
echo "126 layers, tp 8, pp 16: compiled in $ms ms"
[ $ms -lt 6000 ] && ok || bad "126 layers take $ms ms"
finish
