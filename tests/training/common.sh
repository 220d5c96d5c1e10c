# common.sh: what the training tests share. Sourced with $1 = the build folder. Texts of the project are the data, so
# that nothing is needed but the two programs and Python's standard library.
set -u
build=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache"
cat "$top"/graphs/*.lua "$top"/compiler/notation*.lua | tr -d '\200-\377' >"$work/text"
passed=0 failed=0

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
finish() { echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; exit; }

# model NAME: the picoc arguments of a small model that has every mechanism of its kind
model() {
    case $1 in
    llama) echo "$top/graphs/llama.lua -D hidden_size=48 -D intermediate_size=80 -D num_hidden_layers=3 -D num_attention_heads=6 -D num_key_value_heads=2" ;;
    llama-tied) echo "$top/graphs/llama.lua -D hidden_size=36 -D intermediate_size=52 -D num_hidden_layers=2 -D num_attention_heads=6 -D num_key_value_heads=6 -D tie_word_embeddings=true" ;;
    gpt2) echo "$top/graphs/gpt2.lua -D n_embd=40 -D n_layer=2 -D n_head=4" ;;
    qwen3) echo "$top/graphs/qwen3.lua -D hidden_size=40 -D intermediate_size=56 -D num_hidden_layers=2 -D num_attention_heads=4 -D num_key_value_heads=2 -D head_dim=16" ;;
    mlp) echo "$top/graphs/mlp.lua" ;;
    muon) echo "$top/graphs/examples/muon.lua" ;;
    esac
}

# compile NAME OUT EXTRA...: the plan of a model; train PLAN OUT EXTRA...: OUT.jsonl and OUT.safetensors
compile() {
    m=$1 o=$2; shift 2
    # shellcheck disable=SC2046
    "$build/picoc" $(model "$m") -o "$o" "$@" || { bad "picoc $m $*"; return 1; }
}
train() {
    p=$1 o=$2; shift 2
    "$build/picorun" "$p" --data "$work/text" --no-shuffle --log "$o.jsonl" --save "$o.safetensors" "$@" >"$o.out" 2>&1 ||
        { bad "picorun $*: $(tail -n 1 "$o.out")"; return 1; }
}
# same_bits WHAT A B: losses, norms and all weights are equal to the last bit
same_bits() {
    if cmp -s "$2.safetensors" "$3.safetensors" &&
        [ "$(sed 's/,"tokens_per_second.*//; s/, *"tokens_per_second.*//' "$2.jsonl")" = "$(sed 's/,"tokens_per_second.*//; s/, *"tokens_per_second.*//' "$3.jsonl")" ]; then ok
    else bad "$1: bits differ"; fi
}
