#!/bin/bash
# bits.sh BUILD: what must not change a single bit of losses, norms, gradients and weights: cutting a model in pipeline
# stages by any schedule; MPI processes instead of threads; delays of messages; ZeRO (without clipping); a second run.
# Initial weights, drawn or read from a file, are those of one rank in every layout; copies on several ranks stay equal.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
quick_kernels
small="--micro-batch 2"
stepped="--steps 3 --clip 0.5 --eps 1e-3"

# ---- pipelines
pipeline() { # RECOMPUTE ACCUM PP SCHEDULE
    local run=$work/pipeline-$1-$2-$3-$4
    plan "$run" llama 8 65 $small --recompute "$1" --accum "$2" --pp "$3" --schedule "$4" && train "$run" 65 $stepped &&
        same "recompute $1 accum $2 pp $3 $4" "$work/one-$2" "$run" --bits
    rm -f "$run".*
}
for accum in 1 3 8; do
    plan "$work/one-$accum" llama 8 65 $small --accum $accum && train "$work/one-$accum" 65 $stepped || finish
done
for accum in 1 3 8; do
    for pp in 2 3 4; do
        for schedule in afab 1f1b interleaved zb; do
            job pipeline none $accum $pp $schedule
            [ $pp$accum = 23 ] || [ $pp$accum = 41 ] && job pipeline full $accum $pp $schedule
        done
    done
done
wait

# ---- processes, delays, ZeRO, a second run
whole="--micro-batch 1 --accum 2 --tp 2 --pp 2 --dp 2"
under_mpi() { # OUT PLAN
    timeout -k 5 120 mpirun --oversubscribe --allow-run-as-root -n 8 "$build/picorun" "$2" --data "$work/text65" --no-shuffle \
        --threads 1 --log "$1.jsonl" --dump-grads "$1.grads" --save "$1.safetensors" $stepped >"$1.out" 2>&1 ||
        { bad "mpirun: exit status $?: $(grep -m 1 picorun "$1.out")"; return 1; }
}
for model in llama-tied gpt2; do
    run=$work/many-$model
    plan "$run" $model 4 65 $whole --zero 1 && train "$run" 65 $stepped || continue
    for way in again delayed mpi; do
        cp "$run.plan" "$run-$way.plan"
        case $way in
        again) train "$run-again" 65 $stepped || continue ;;
        delayed) PICO_DELAY_US=300 train "$run-delayed" 65 $stepped || continue ;;
        mpi)
            command -v mpirun >/dev/null || { echo "no mpirun: processes and threads are not compared"; continue; }
            under_mpi "$run-mpi" "$run.plan" || continue
            ;;
        esac
        same "$model $way" "$run" "$run-$way" --bits
    done
    plan "$run-z0" $model 4 65 $whole --zero 0 && train "$run" 65 --steps 3 --clip 0 &&
        train "$run-z0" 65 --steps 3 --clip 0 && rm -f "$run.jsonl" && same "$model zero 0, zero 1" "$run" "$run-z0" --bits
done

# ---- initial weights
draw() { # OUT OPTION...
    "$build/picorun" "$1.plan" --data "$work/text65" --steps 0 --threads 1 --save "$1.safetensors" "${@:2}" >"$1.out" 2>&1
}
initial() { # MODEL NAME LAYOUT...: drawn with --seed 7, and read from the file that one rank made
    local model=$1 run=$work/init-$1-$2
    shift 2
    plan "$run" "$model" 5 65 $small "$@" || return
    for way in "--seed 7" "--init $work/init-$model.safetensors"; do
        draw "$run" $way
        if cmp -s "$run.safetensors" "$work/init-$model.safetensors"; then ok
        else bad "$model $* $way: initial weights differ from one rank's: $(grep -m 1 picorun: "$run.out")"; fi
        rm -f "$run.safetensors"
    done
}
for model in llama llama-tied llama-kv2 gpt2; do
    run=$work/init-$model
    plan "$run" $model 5 65 $small &&
        draw "$run" --seed 7 || continue
    number=0
    for layout in "--tp 2" "--tp 4" "--tp 4 --no-sp" "--pp 2" "--pp 4" "--dp 3" "--dp 2 --zero 1" \
        "--tp 2 --pp 2 --dp 2" "--tp 2 --pp 5 --dp 2 --zero 1" "--tp 4 --pp 2 --schedule interleaved"; do
        number=$((number + 1))
        job initial $model $number $layout
    done
done
wait

# ---- copies: a parameter that several ranks hold has the same bits on all after 20 steps (--check-copies), and those of one
# rank's run to 1e-12.
copies() { # MODEL NUMBER LAYOUT...
    local model=$1 run=$work/copies-$1-$2
    shift 2
    plan "$run" "$model" 4 65 --dtype f64 "$@" && train "$run" 65 --steps 20 --eps 1e-3 --clip 1 --check-copies &&
        same "$model $* after 20 steps" "$work/copies-$model" "$run" --loss 1e-12 --norm 1e-12 --params 1e-12
    rm -f "$run".*
}
for model in llama-kv2 gpt2; do
    plan "$work/copies-$model" $model 4 65 --dtype f64 --micro-batch 4 &&
        train "$work/copies-$model" 65 --steps 20 --eps 1e-3 --clip 1 || continue
    job copies $model 1 --micro-batch 4 --tp 4 --sp
    job copies $model 2 --micro-batch 4 --tp 4 --no-sp
    job copies $model 3 --micro-batch 1 --dp 4 --zero 1
    job copies $model 4 --micro-batch 1 --accum 2 --tp 2 --pp 2 --dp 2
done
finish
