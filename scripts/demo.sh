#!/bin/sh
# demo.sh [TEXT]: installs what is missing, builds, compiles graphs/llama.lua to a small model and trains it on real
# English (Debian's fortunes and jargon file, or the file given) for a minute or two. Ends with a loss well below the
# entropy of single bytes, the graph and the loss curve as pictures.
set -eu
text=$(realpath "${1:-/dev/null}")
cd "$(dirname "$0")/.."
[ "$text" = /dev/null ] && text=""
scripts/packages.sh run
cmake --preset release -G Ninja -DPICO_TESTS=OFF >/dev/null
cmake --build build
echo
scripts/corpus.sh "${text:--}" build/corpus.txt | tee build/corpus.stats
entropy=$(sed -n 's/.*unigram entropy[^0-9]*\([0-9.]*\).*/\1/p' build/corpus.stats)
echo
build/picoc graphs/llama.lua -o build/demo.plan --dot build/demo.dot --report
dot -Tsvg build/demo.dot -o build/demo.svg
echo
build/picorun build/demo.plan --data build/corpus.txt --steps 450 --warmup 20 --decay cosine --log build/demo.jsonl --save build/demo.safetensors
scripts/plot_loss.sh build/demo.jsonl build/demo-loss.svg "$entropy" >/dev/null
awk -v h="$entropy" '
    match($0, /"loss": *[0-9.eE+-]+/) { l = substr($0, RSTART, RLENGTH); sub(/.*: */, "", l); last[n++ % 20] = l }
    END {
        for (i in last) { s += last[i]; k++ }
        printf "\nunigram entropy of the text %.3f nat a byte, loss over the last %d steps %.3f: %.3f below\n", h, k, s / k, h - s / k
        exit !(h - s / k > 0.5)
    }' build/demo.jsonl
echo "the graph:      build/demo.svg"
echo "the loss curve: build/demo-loss.svg"
echo "the weights:    build/demo.safetensors (Hugging Face names)"
