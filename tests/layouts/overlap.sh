#!/bin/bash
# overlap.sh BUILD: communication goes on beside computing. With every operation delayed by d (PICO_DELAY_US: ready no
# sooner than d after the rank started it), a step grows by less than 0.3 of the sum of a rank's delays, for the buckets of
# data parallelism and for the transfers of pipelines, with ranks as threads and as processes. The collectives of tensor
# parallelism, which are awaited at once, show that the delays are there.
#
# d is below the time of a micro-batch's work, and the sum counts gradients and transfers alone, of the rank that has
# fewest. Other programs disturb the times, so every second step of a run is delayed and compared with the steps on both
# sides of it; the median counts, and there are more runs where it is not yet below the limit.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
steps=21 runs=6
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
# growth NAME DELAY PATTERN LAUNCHER...: sets `n`, a rank's operations, and `part`, the growth as a part of the sum of delays
growth() {
    local name=$1 d=$2 log=$work/$1.jsonl run
    n=$(operations "$name" "$3")
    shift 3
    : >"$work/$name.pairs"
    for run in $(seq $runs); do
        rm -f "$log"
        PICO_DELAY_US=0,$d timeout -s KILL 120 "$@" "$build/picorun" "$work/$name.plan" --data "$work/text256" --threads 1 \
            --steps $steps --log "$log" >"$work/out" 2>&1 || { bad "$name $*: $(grep -m 1 picorun: "$work/out")"; return 1; }
        sed 's/.*"seconds": *\([^,}]*\).*/\1/' "$log" |
            awk 'NR % 2 == 0 { with = $1 } NR % 2 && NR > 3 { print with - ($1 + before) / 2, ($1 + before) / 2 } NR % 2 { before = $1 }' \
                >>"$work/$name.pairs"
        part=$(sort -g "$work/$name.pairs" | awk -v n="$n" -v d="$d" '{ x[NR] = $1 }
            END { printf "%.3f", (x[int((NR + 1) / 2)] + x[int((NR + 2) / 2)]) / 2 / (n * d * 1e-6) }')
        [ $run -ge 2 ] && below "$part" 0.3 && break
    done
    without=$(awk '{ print $2 }' "$work/$name.pairs" | sort -g | awk '{ x[NR] = $1 } END { printf "%.0f", x[int((NR + 1) / 2)] * 1e3 }')
    echo "$name ${1##*/}: $without ms a step; $n delays of $d us: growth $part of their sum ($(grep -c . "$work/$name.pairs") pairs)"
}
below() { awk -v x="$1" -v l="$2" 'BEGIN { exit !(x < l) }'; }
hidden() { # NAME DELAY LAUNCHER...
    growth "$1" "$2" "gradients|send  |receive  " "${@:3}" || return
    if [ "$n" -ge 8 ] && below "$part" 0.3; then ok; else bad "$1 ${*:3}: a step grows by $part of $n delays"; fi
}
seen() { # NAME DELAY LAUNCHER...
    growth "$1" "$2" "all-reduce|reduce-scatter|all-gather" "${@:3}" || return
    if below 0.5 "$part"; then ok; else bad "$1: delays are not seen: $part of $n"; fi
}

compile dp2 --seq 128 --micro-batch 2 --accum 4 --dp 2 --bucket-mb 0.25
compile pp2 --seq 256 --micro-batch 2 --accum 8 --pp 2
compile pp4 --seq 256 --micro-batch 2 --accum 8 --pp 4
compile tp2 --seq 128 --micro-batch 2 --accum 1 --tp 2
# Delays of buckets that are under way together count once, wherever they start; so it is seen in the plan, too, that each
# starts right behind an instruction that adds to one of its gradients (or another start that does).
late=$("$build/picoc" --print "$work/dp2.plan" | awk '
    / last: start c[0-9]/ {
        starts++
        found = 0
        for (i = 1; i <= NF; i++) { gradient = $i; sub(/,$/, "", gradient); if (gradient ~ /#/ && (index(before, "inout " gradient ",") || index(before, "inout " gradient " "))) found = 1 }
        if (!found) print "c" starts - 1
        next
    }
    { before = $0 "," }
    END { if (starts < 18) print starts + 0, "starts" }')
if [ -z "$late" ]; then ok; else bad "buckets start late:" $late; fi

have_mpi=$(command -v mpirun) || echo "no mpirun: ranks as processes are not tried"
mpi="mpirun --oversubscribe --allow-run-as-root"
for plan in dp2 pp2 pp4; do
    hidden $plan 10000 env
    [ -z "$have_mpi" ] || hidden $plan 10000 $mpi -n ${plan#??}
done
runs=1
seen tp2 10000 env
finish
