# common.sh: what the tests of layouts share. Sourced with $1 = the build folder. A run leaves NAME.plan, NAME.jsonl,
# NAME.grads, NAME.safetensors and NAME.out; tests/compare reads these. Cases may run in the background (job): results
# are lines of a file. The texts of the project are the data.
# shellcheck shell=bash disable=SC2086,SC2046  # options are words
set -u
build=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
layouts=$top/tests/layouts
compare=$build/tests/compare
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache"
results=$work/results
: >"$results"

ok() { echo ok >>"$results"; }
bad() { echo "FAILED: $*" | tee -a "$results"; }
finish() {
    wait
    failed=$(grep -c '^FAILED' "$results")
    echo "$(grep -c '^ok$' "$results") passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}
# job COMMAND...: in the background, two at a time
job() {
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    "$@" &
}

# A compiler without its optimizer, for tests of many plans: kernels are compiled in half the time, to the same bits.
quick_kernels() {
    printf '#!/bin/sh\nexec cc "$@" -O0\n' >"$work/cc"
    chmod +x "$work/cc"
    export CC="$work/cc"
}

# $work/text256: the project's texts; $work/text65: the same with bytes below 65
cat "$top"/graphs/*.lua "$top"/compiler/notation*.lua >"$work/text256"
lua5.4 -e 'io.write((io.read("a"):gsub(".", function(c) return string.char(c:byte() % 65) end)))' \
    <"$work/text256" >"$work/text65"

# model NAME LAYERS VOCAB: the picoc arguments of a small model
model() {
    llama="$top/graphs/llama.lua -D hidden_size=32 -D intermediate_size=48 -D num_attention_heads=8 -D head_dim=4"
    llama="$llama -D num_hidden_layers=$2 -D vocab_size=$3"
    case $1 in
    llama) echo "$llama -D num_key_value_heads=4" ;;
    llama-tied) echo "$llama -D num_key_value_heads=4 -D tie_word_embeddings=true" ;;
    llama-kv2) echo "$llama -D num_key_value_heads=2" ;;
    gpt2) echo "$top/graphs/gpt2.lua -D n_embd=32 -D n_layer=$2 -D n_head=8 -D n_positions=32 -D vocab_size=$3" ;;
    esac
}

# plan OUT MODEL LAYERS VOCAB EXTRA...: OUT.plan
plan() {
    o=$1 m=$2 l=$3 v=$4
    shift 4
    timeout -k 5 60 "$build/picoc" $(model "$m" "$l" "$v") --seq 16 -o "$o.plan" "$@" >"$o.out" 2>&1 ||
        { bad "picoc $m $l $v $*: $(grep -m 1 picoc: "$o.out" || head -n 1 "$o.out")"; return 1; }
}
# train OUT VOCAB EXTRA...: runs OUT.plan, for at most 60 s
train() {
    o=$1 v=$2
    shift 2
    timeout -k 5 60 "$build/picorun" "$o.plan" --data "$work/text$v" --no-shuffle --threads 1 --log "$o.jsonl" \
        --dump-grads "$o.grads" --save "$o.safetensors" "$@" >"$o.out" 2>&1 ||
        { bad "picorun $o $*: exit status $?: $(grep -m 1 picorun: "$o.out" || tail -n 1 "$o.out")"; return 1; }
}
# same WHAT REF RUN HOW...: compare's verdict
same() {
    what=$1 a=$2 b=$3
    shift 3
    if "$compare" "$a" "$b" "$@" >"$b.worst" 2>"$b.fault"; then ok
    else bad "$what: $(paste -sd ';' "$b.fault")"; fi
}
