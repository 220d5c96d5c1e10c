#!/bin/bash
# failures.sh BUILD: one rank fails, is killed or lacks its data; SIGTERM; a wrong number of processes. All end within ten
# seconds, with a status other than 0 and one message, and leave nothing behind: no process, no temporary file, and a
# log whose lines are whole.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
quick_kernels
exec 2>/dev/null  # the shell's own words on killed children
export TMPDIR="$work/tmp"
mkdir "$TMPDIR" "$work/here"
plan "$work/p" llama 4 65 --micro-batch 2 --tp 2 --pp 2 || finish
here=$work/here
have_mpi=$(command -v mpirun)
[ -n "$have_mpi" ] || echo "no mpirun: ranks as processes are not tried"
mpi="mpirun --oversubscribe --allow-run-as-root"
# the first run compiles the kernels, and its files are those that a run leaves
"$build/picorun" "$work/p.plan" --data "$work/text65" --steps 1 --threads 1 >/dev/null || bad "a first run"

# start COMMAND...: a training without end, in the background; waits for its third step. Its own process group, as in a shell.
start() {
    rm -rf "${here:?}"/*
    setsid "$@" "$build/picorun" "$work/p.plan" --data "$work/text65" --steps 1000000 --threads 1 --log "$here/log.jsonl" \
        --save "$here/w.safetensors" >"$work/out" 2>&1 &
    child=$!
    for _ in $(seq 300); do
        [ "$(grep -c . "$here/log.jsonl" 2>/dev/null)" -ge 3 ] 2>/dev/null && return 0
        sleep 0.1
    done
    bad "$*: no third step after 30 s: $(tail -n 1 "$work/out")"
    kill -9 -- -$child 2>/dev/null
    return 1
}
ranks_of() { pgrep -f "^$build/picorun $work/p.plan"; }

# ended WHAT STATUS...: the child ends within 10 s with one of these statuses ("fault": any but 0); nothing is left
ended() {
    local what=$1 begin=$SECONDS status
    shift
    while kill -0 $child 2>/dev/null && [ $((SECONDS - begin)) -le 10 ]; do sleep 0.1; done
    if kill -0 $child 2>/dev/null; then
        bad "$what: not over after 10 s"
        kill -9 -- -$child
        wait $child 2>/dev/null
        return
    fi
    wait $child 2>/dev/null
    status=$?
    case " $* " in
    *" $status "*) ok ;;
    *) if [ "$1" = fault ] && [ $status != 0 ]; then ok; else bad "$what: exit status $status, not $*"; fi ;;
    esac
    nothing_left "$what"
}
whole_log() { # no log, or each line ends and holds a step
    local log=$here/log.jsonl
    [ ! -e "$log" ] || { [ "$(grep -c '^{"step": [0-9]*, .*}$' "$log")" = "$(wc -l <"$log")" ] && [ -z "$(tail -c 1 "$log")" ]; }
}
nothing_left() {
    local left
    for _ in $(seq 50); do  # ranks whose mpirun is gone notice it after a moment
        left=$(pgrep -f "$work/p.plan")
        [ -z "$left" ] && break
        sleep 0.1
    done
    if [ -z "$left" ]; then ok; else bad "$1: processes are left:" $left; kill -9 $left; fi
    left=$(find "$here" "$work/cache" "$TMPDIR" -type f -newer "$work/p.plan" \
        ! -path '*/ompi.*' ! -name log.jsonl ! -name w.safetensors ! -name '*.so')
    if [ -z "$left" ]; then ok; else bad "$1: files are left:" $left; fi
    if whole_log; then ok; else bad "$1: the log's last line is not whole"; fi
}
saved() { if [ -s "$here/w.safetensors" ]; then ok; else bad "$1: the weights were not saved"; fi; }

# ---- threads
start env && kill -TERM "$(ranks_of)" && ended "SIGTERM to threads" 143 && saved "SIGTERM to threads"
start env && kill -INT "$(ranks_of)" && ended "SIGINT to threads" 130
start env && kill -9 "$(ranks_of)" && ended "SIGKILL to threads" 137
start env && kill -TERM "$(ranks_of)" && kill -TERM "$(ranks_of)" && ended "SIGTERM twice to threads" 143
start env && kill -INT "$(ranks_of)" && sleep 0.01 && kill -INT "$(ranks_of)" && ended "SIGINT twice to threads" 130

# ---- processes
if [ -n "$have_mpi" ]; then
    start $mpi -n 4 && kill -9 "$(ranks_of | tail -n 1)" && ended "a killed rank" fault
    start $mpi -n 4 && kill -TERM $child && ended "SIGTERM to mpirun" fault && saved "SIGTERM to mpirun"
    start $mpi -n 4 && kill -USR1 $child && ended "SIGUSR1 to mpirun" 138 && saved "SIGUSR1 to mpirun"
    start $mpi -n 4 && kill -INT -- -$child && ended "SIGINT to mpirun and ranks, as from a terminal" fault
    start $mpi -n 4 && kill -TERM $child && sleep 0.02 && kill -TERM $child && ended "SIGTERM twice to mpirun" fault
    start $mpi -n 4 && kill -9 $child && ended "a killed mpirun" fault
    # as between hosts: no shared memory
    start $mpi --mca btl tcp,self -n 4 && kill -9 "$(ranks_of | tail -n 1)" && ended "a killed rank, over TCP" fault
    start $mpi -n 4 && kill -TERM "$(ranks_of | head -n 1)" && ended "SIGTERM to one rank" fault
fi

# refused WHAT PATTERN COMMAND...: fails within 10 s, says this once
refused() {
    local what=$1 pattern=$2 begin=$SECONDS
    shift 2
    rm -rf "${here:?}"/*
    timeout -k 5 30 "$@" >"$work/out" 2>&1
    local status=$?
    if [ $status != 0 ] && [ $status != 124 ] && [ $((SECONDS - begin)) -le 10 ]; then ok
    else bad "$what: exit status $status after $((SECONDS - begin)) s"; fi
    if [ "$(grep -c "$pattern" "$work/out")" = 1 ]; then ok
    else bad "$what: not said once: $(grep picorun: "$work/out" | head -n 3 | paste -sd ';')"; fi
    nothing_left "$what"
}
cat >"$work/alone" <<EOF
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" = 2 ] && data="$work/absent" || data="$work/text65"
exec "$build/picorun" "$work/p.plan" --data "\$data" --steps 3 --threads 1 --log "$here/log.jsonl"
EOF
chmod +x "$work/alone"
if [ -n "$have_mpi" ]; then
    for n in 1 3 5; do
        refused "$n processes for 4 ranks" "4 ranks.*$n process" \
            $mpi -n $n "$build/picorun" "$work/p.plan" --data "$work/text65" --steps 3
    done
    run="$build/picorun $work/p.plan --threads 1 --steps 2 --data"
    refused "other options on one rank" "same options" $mpi -n 3 $run "$work/text65" : -n 1 $run "$work/text65" --lr 1
    head -c 5000 "$work/text65" >"$work/text-other"
    refused "other data on one rank" "same data" $mpi -n 3 $run "$work/text65" : -n 1 $run "$work/text-other"
    plan "$work/other" llama 4 65 --micro-batch 2 --tp 2 --pp 2 -D rms_norm_eps=1e-3 &&
        refused "another plan on one rank" "same plan" $mpi -n 3 $run "$work/text65" : \
            -n 1 "$build/picorun" "$work/other.plan" --threads 1 --steps 2 --data "$work/text65"
    refused "data missing on one rank" "$work/absent" $mpi -n 4 "$work/alone"
fi
refused "data missing" "$work/absent" "$build/picorun" "$work/p.plan" --data "$work/absent" --steps 3
head -c 10 "$work/text65" >"$work/short"
refused "data too short" "$work/short" "$build/picorun" "$work/p.plan" --data "$work/short" --steps 3
cp "$work/text65" "$work/wrong" && printf '\177' >>"$work/wrong" && tail -c 17 "$work/wrong" >"$work/outside"
refused "a token outside" "127" "$build/picorun" "$work/p.plan" --data "$work/outside" --no-shuffle --steps 3
finish
