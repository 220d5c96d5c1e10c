#!/bin/bash
# grid.sh BUILD [pairs|triples|full [OPTION=VALUE...]]: layouts against one rank: losses, norms, gradients of step 1 and
# weights after five steps, in fp64 to 1e-12; every few layouts also in fp32 over 20 steps (loss 1e-5, norm 1e-4). The
# layouts are those of pairs.lua; OPTION=VALUE keeps the lines with that word. A table of the worst differences ends it.
#
# The reference of a layout is one rank with accum * dp micro-batches; references are shared. GRID_DIR=DIR keeps results
# and kernels there, and a later run with the same folder goes on: see scripts/grid.sh.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
quick_kernels
list=${2:-pairs}
shift $(($# < 2 ? $# : 2))
dir=${GRID_DIR:-$work/grid}
mkdir -p "$dir/rows" "$dir/runs"
dir=$(cd "$dir" && pwd)
export XDG_CACHE_HOME="$dir/cache"

# Sets model, layers, ... of a row, and what depends on them.
read_row() {
    for word in $1; do declare -g "${word%%=*}=${word#*=}"; done
    micro=2
    [ "$accum" = 8 ] && micro=1
    name=$model-l$layers-v$vocab-tp$tp-pp$pp-dp$dp-sp$sp-$schedule-zero$zero-a$accum
    batch=$((accum * dp))
    reference=$dir/runs/$model-l$layers-v$vocab-m$micro-b$batch
    options="--micro-batch $micro --accum $accum --tp $tp --pp $pp --dp $dp --zero $zero --schedule $schedule"
    [ "$sp" = on ] && options="$options --sp"
    [ "$tp-$sp" = 1-off ] || [ "$sp" = on ] || options="$options --no-sp"
}

run_of() { # OUT DTYPE PICOC_OPTIONS...
    local out=$1 dtype=$2 steps=5
    shift 2
    [ "$dtype" = f32 ] && steps=20
    plan "$out" "$model" "$layers" "$vocab" --dtype "$dtype" "$@" && train "$out" "$vocab" --eps 1e-3 --clip 1 --steps $steps
}

make_reference() { # DTYPE
    [ -e "$reference-$1.done" ] || { run_of "$reference-$1" "$1" --micro-batch $micro --accum $batch && touch "$reference-$1.done"; }
    rm -f "$reference-$1.plan"
}

compare_row() { # DTYPE TOLERANCES...: a line of worst differences
    local dtype=$1 run=$dir/runs/$name-$1 failed=1
    shift
    run_of "$run" "$dtype" $options && same "$name $dtype" "$reference-$dtype" "$run" "$@" && [ ! -s "$run.fault" ] &&
        echo "$dtype $(cat "$run.worst") $row" >>"$dir/rows/$name.part" && failed=0
    rm -f "$run".*
    return $failed
}

# A row that failed leaves no file: a later run tries it again.
run_row() { # ROW
    row=$1
    rm -f "$dir/rows/$name.part"
    compare_row f64 --loss 1e-12 --norm 1e-12 --grads 1e-12 --params 1e-12 &&
        if [ $((number % 5)) = 1 ]; then compare_row f32 --loss 1e-5 --norm 1e-4; fi &&
        mv "$dir/rows/$name.part" "$dir/rows/$name"
    echo . >>"$dir/count"
    [ $(($(grep -c . "$dir/count") % 10)) = 0 ] &&
        echo "$(grep -c . "$dir/count") of ${#todo[@]}, $(grep -c '^FAILED' "$results") failed, $((SECONDS - start)) s"
}

rows=$(lua5.4 "$layouts/pairs.lua" "$list") || exit 2
for word in "$@"; do rows=$(grep -w -- "$word" <<<"$rows"); done
start=$SECONDS number=0
todo=()
declare -A wanted
while read -r row; do
    number=$((number + 1))
    read_row "$row"
    [ -e "$dir/rows/$name" ] && continue
    todo+=("$number $row")
    for dtype in f64 f32; do
        [ -n "${wanted[$reference-$dtype]-}" ] || [ $dtype-$((number % 5 != 1)) = f32-1 ] && continue
        wanted[$reference-$dtype]=1
        job make_reference $dtype
    done
done <<<"$rows"
wait
echo "$number layouts, ${#todo[@]} to run; their references took $((SECONDS - start)) s"
: >"$dir/count"
for row in "${todo[@]}"; do
    number=${row%% *} row=${row#* }
    read_row "$row"
    job run_row "$row"
done
wait
cat "$dir"/rows/* 2>/dev/null | lua5.4 "$layouts/worst.lua" "$([ "$list" = pairs ] && echo brief)"
echo "$((SECONDS - start)) s"
finish
