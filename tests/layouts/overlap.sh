#!/bin/bash
# overlap.sh BUILD: communication goes on beside computing. With every operation delayed by d (PICO_DELAY_US: ready no
# sooner than d after the rank started it), a step grows by less than 0.3 of the sum of a rank's delays, for the buckets of
# data parallelism and for the transfers of pipelines, with ranks as threads and as processes. The collectives of tensor
# parallelism, which are awaited at once, show that the delays are there.
#
# d is below the time of a micro-batch's work, and the sum counts gradients and transfers alone, of the rank that has
# fewest. Other programs disturb the times: runs with and without delay take turns, the fastest step of each kind is
# what counts, and there are more turns where the growth is still too large.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
steps=7 turns=6
size="-D hidden_size=128 -D intermediate_size=352 -D num_attention_heads=4 -D num_key_value_heads=2 -D num_hidden_layers=4"
compile() { # NAME LAYOUT...
    timeout -s KILL 60 "$build/picoc" "$top/graphs/llama.lua" $size "${@:2}" -o "$work/$1.plan" >"$work/out" 2>&1 ||
        { bad "picoc $*: $(head -n 1 "$work/out")"; finish; }
}
operations() { # NAME PATTERN: the fewest of these a rank has in a step
    "$build/picorun" "$work/$1.plan" --device null | awk -v wanted="$2" '
        /^stage [0-9]*:/ || /^in all:/ { if (seen++ && (least == "" || n < least)) least = n; n = 0 }
        $0 ~ wanted { sub(/^.*\([0-9]+\)/, ""); sub(/^stages */, ""); n += $2 }
        END { print least + 0 }'
}
fastest() { # NAME DELAY LAUNCHER...: seconds of the fastest step, and of those before
    local name=$1 d=$2 log=$work/$1.jsonl
    shift 2
    rm -f "$log"
    PICO_DELAY_US=$d timeout -s KILL 120 "$@" "$build/picorun" "$work/$name.plan" --data "$work/text256" --threads 1 \
        --steps $steps --log "$log" >"$work/out" 2>&1 || { bad "$name $*: $(grep -m 1 picorun: "$work/out")"; return 1; }
    tail -n +2 "$log" | sed 's/.*"seconds": *\([^,}]*\).*/\1/' >>"$work/$name.$d"
    sort -g "$work/$name.$d" | head -n 1
}
# growth NAME DELAY PATTERN LIMIT LAUNCHER...: sets `part`, the growth as a part of the sum of delays; ends when below LIMIT
growth() {
    local name=$1 d=$2 pattern=$3 limit=$4 turn without with
    shift 4
    n=$(operations "$name" "$pattern")
    rm -f "$work/$name".{0,$d}
    for turn in $(seq $turns); do
        without=$(fastest "$name" 0 "$@") && with=$(fastest "$name" $d "$@") || return 1
        part=$(awk -v a="$without" -v b="$with" -v n="$n" -v d="$d" 'BEGIN { printf "%.3f", (b - a) / (n * d * 1e-6) }')
        [ $turn -ge 2 ] && awk -v x="$part" -v l="$limit" 'BEGIN { exit !(x < l) }' && break
    done
    echo "$name ${1##*/}: $without s a step, $with s with $n delays of $d us: growth $part of their sum"
}
hidden() { # NAME DELAY LAUNCHER...
    growth "$1" "$2" "gradients|send  |receive  " 0.3 "${@:3}" || return
    if [ "$n" -ge 8 ] && awk -v x="$part" 'BEGIN { exit !(x < 0.3) }'; then ok
    else bad "$1 ${*:3}: a step grows by $part of $n delays"; fi
}
seen() { # NAME DELAY LAUNCHER...
    growth "$1" "$2" "all-reduce|reduce-scatter|all-gather" 0 "${@:3}" || return
    if awk -v x="$part" 'BEGIN { exit !(x > 0.5) }'; then ok; else bad "$1: delays are not seen: $part of $n"; fi
}

compile dp2 --seq 128 --micro-batch 2 --accum 4 --dp 2 --bucket-mb 0.25
compile pp2 --seq 256 --micro-batch 2 --accum 8 --pp 2
compile pp4 --seq 256 --micro-batch 2 --accum 8 --pp 4
compile tp2 --seq 128 --micro-batch 2 --accum 1 --tp 2
ways="env"
command -v mpirun >/dev/null && ways="env mpirun" || echo "no mpirun: ranks as processes are not tried"
for way in $ways; do
    for ranks in 2 4; do
        launch=env
        [ $way = mpirun ] && launch="mpirun --oversubscribe --allow-run-as-root -n $ranks"
        [ $ranks = 2 ] && hidden dp2 10000 $launch && hidden pp2 10000 $launch
        [ $ranks = 4 ] && hidden pp4 10000 $launch
    done
done
turns=2
seen tp2 10000 env
finish
