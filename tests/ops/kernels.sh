#!/bin/sh
# kernels.sh BUILD [NAME ..]: the generated kernels compute what the evaluator computes, for every model of tests/ops/library
# (or those named): loss, gradients of the first step and, where the file is marked `-- steps: N`, the parameters after N
# steps; in fp64 and fp32, fused and (but for models that are twins of others) not, and in bf16, where the evaluator rounds
# what is stored in bf16 as the kernels must.
set -u
build=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME="$work/cache"
compare="python3 $top/scripts/oracle_compare.py"
passed=0 failed=0

bad() { failed=$((failed + 1)); echo "FAILED: $*"; }

# same WHAT COMPARISON..: the output of a comparison is shown if it fails
same() {
    what=$1; shift
    if out=$($compare "$@" 2>&1); then passed=$((passed + 1)); else bad "$what: $out"; fi
}

# check NAME DTYPE LIMIT FLAG
check() {
    what="$1 $2 $4" d="$work/$1.$2" model="$top/tests/ops/library/$1.lua"
    steps=$(sed -n 's/^-- steps: //p' "$model") sizes=$(sed -n 's/^-- sizes: //p' "$model")
    sizes=${sizes:-5 2}
    # shellcheck disable=SC2086
    out=$("$build/picoc" "$model" --seq "${sizes% *}" --micro-batch "${sizes#* }" --dtype "$2" $4 -o "$d/plan" 2>&1) ||
        { bad "$what: picoc: $(echo "$out" | tail -n 3)"; return; }
    out=$("$build/picorun" "$d/plan" --data "$d/data.bin" --no-shuffle --steps "${steps:-1}" --init "$d/init.safetensors" --threads 2 \
        --poison --log "$d/run.jsonl" --dump-grads "$d/run.grads" --save "$d/run.save" 2>&1) ||
        { bad "$what: picorun: $(echo "$out" | tail -n 3)"; return; }
    same "$what: loss" "$d/run.jsonl" "$d/log.jsonl" --loss "$3" --norm inf
    same "$what: gradients" --tensors "$d/run.grads" "$d/grads.safetensors" --tol "$3"
    [ -z "$steps" ] || same "$what: parameters" --tensors "$d/run.save" "$d/save.safetensors" --tol "$3"
}

[ $# -gt 0 ] || set -- $(cd "$top/tests/ops/library" && ls ./*.lua | sed 's|^./||; s|.lua$||')
for name in "$@"; do
    for dtype in f64 f32 bf16; do
        case $dtype in f64) limit=1e-11 ;; f32) limit=2e-5 ;; *) limit=1e-3 ;; esac
        mkdir "$work/$name.$dtype"
        out=$("$build/tests/reference" "$top/tests/ops/library/$name.lua" $dtype "$work/$name.$dtype" 2>&1) ||
            { bad "$name $dtype: reference: $(echo "$out" | tail -n 3)"; continue; }
        check "$name" $dtype $limit ""
        [ $dtype = bf16 ] || grep -q '^-- same as' "$top/tests/ops/library/$name.lua" || check "$name" $dtype $limit --no-fuse
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
