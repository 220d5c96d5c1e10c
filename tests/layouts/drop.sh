#!/bin/bash
# drop.sh BUILD: every collective, mask and owner of a layout is needed: picoc --drop N leaves out the N-th (--drop list names
# them), and then the plan must be refused, its run must fail, or a comparison with one rank must. What survives is listed
# and must be what survivors.txt explains.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
quick_kernels
exec 2>/dev/null  # the shell's own words on a picoc that aborts, as it may here
training="--steps 2 --eps 1e-3 --clip 1"
exact="--loss 1e-12 --norm 1e-12 --grads 1e-12 --params 1e-12"

fate() { echo "$1" >>"$dir/fates"; ok; }
drop() { # N TEXT
    local run=$dir/$1
    if ! timeout -k 5 60 "$build/picoc" $(model $model 2 65) --seq 16 $layout --drop "$1" -o "$run.plan" >"$run.out" 2>&1; then
        fate refused
    elif ! timeout -k 5 30 "$build/picorun" "$run.plan" --data "$work/text65" --no-shuffle --threads 1 --log "$run.jsonl" \
        --dump-grads "$run.grads" --save "$run.safetensors" $training >"$run.out" 2>&1; then
        fate stopped
    elif ! "$compare" "$dir/one" "$run" $exact >/dev/null 2>&1; then
        fate differs
    else
        fate survived
        echo "$1 $2" >>"$dir/survivors"
    fi
    rm -f "$run".*
}

# all MODEL LAYOUT...: leaves out one thing after the other
all() {
    model=$1
    shift
    layout="--dtype f64 --micro-batch 1 --accum 2 $*"
    dir=$work/$model
    mkdir "$dir"
    : >"$dir/survivors"
    plan "$dir/one" $model 2 65 --dtype f64 --micro-batch 1 --accum 4 && train "$dir/one" 65 $training &&
        plan "$dir/whole" $model 2 65 $layout && train "$dir/whole" 65 $training &&
        same "$model with nothing left out" "$dir/one" "$dir/whole" $exact || return
    "$build/picoc" $(model $model 2 65) --seq 16 $layout --drop list >"$dir/list" || bad "--drop list"
    while read -r number text; do job drop "$number" "$text"; done <"$dir/list"
    wait
    echo "$model $*: $(grep -c . "$dir/list") things to leave out: $(sort "$dir/fates" | uniq -c | paste -sd , | tr -s ' ')"
    sort -n "$dir/survivors" | sed 's/^/survived: /'
    sed "s/^[0-9]* /$model: /" "$dir/survivors" | sort >"$dir/found"
    grep "^$model: " "$layouts/survivors.txt" | sort >"$dir/explained"
    if cmp -s "$dir/found" "$dir/explained"; then ok
    else
        bad "$model: survivors are not those of survivors.txt (>: only there): $(diff "$dir/found" "$dir/explained" |
            grep '^[<>]' | paste -sd ';')"
    fi
}

all llama-tied --tp 2 --pp 2 --dp 2 --sp
all gpt2 --tp 2 --pp 2 --dp 2 --no-sp --zero 1
finish
