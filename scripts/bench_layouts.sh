#!/bin/bash
# bench_layouts.sh [BUILD [ROUNDS]]: what many ranks cost on this machine: a step of a small Llama (hidden 256, 4 layers,
# 8 samples of 128 tokens) on one rank, as dp 8, and as tp 2 pp 2 dp 2, as threads and, where there is mpirun, as
# processes. All work is the same, so ideally all steps take the same time. Per layout: the median of all steps but the
# first two of each round, its ratio to one rank, and CPU seconds a step (all ranks), which other programs disturb less.
# Layouts take turns within a round; ends with an error if one of the threads' ratios is above 1.5 (by time and CPU both).
set -eu
cd "$(dirname "$0")/.."
build=$(cd "${1:-build}" && pwd)
rounds=${2:-3}
steps=14
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model="-D hidden_size=256 -D intermediate_size=704 -D num_hidden_layers=4 -D num_attention_heads=8"
model="$model -D num_key_value_heads=4 -D vocab_size=256 --seq 128 --micro-batch 1"
cat graphs/*.lua >"$work/text"
ways="one dp8 mix"
command -v mpirun >/dev/null && ways="$ways dp8-mpi mix-mpi"

# shellcheck disable=SC2086  # options are words
compile() { "$build/picoc" graphs/llama.lua $model "${@:2}" -o "$work/$1.plan"; }
compile one --accum 8
compile dp8 --dp 8
compile mix --tp 2 --pp 2 --dp 2 --accum 4

run() { # WAY STEPS: CPU seconds of the run; the log goes to WAY.jsonl
    local way=$1 launch=()
    case $way in *-mpi) launch=(mpirun --oversubscribe --allow-run-as-root -n 8) ;; esac
    TIMEFORMAT='%U %S'
    { time timeout -s KILL 300 "${launch[@]}" "$build/picorun" "$work/${way%-mpi}.plan" --data "$work/text" --steps "$2" \
        --log "$work/$way.jsonl" >"$work/out" 2>&1; } 2>"$work/cpu" || { cat "$work/out"; exit 1; }
    awk '{ print $1 + $2 }' "$work/cpu"
}
for way in $ways; do run "$way" 1 >/dev/null; done  # kernels are compiled
for _ in $(seq "$rounds"); do
    for way in $ways; do
        before=$(run "$way" 2)
        after=$(run "$way" $steps)
        echo "cpu $way $before $after"
        tail -n +3 "$work/$way.jsonl" | sed 's/.*"seconds": *\([^,}]*\).*/time '"$way"' \1/'
    done
done >"$work/all"
lua5.4 - "$work/all" $((steps - 2)) "$ways" <<'EOF'
local cpu, time = {}, {}
local function add(t, way, x) t[way] = t[way] or {} ; table.insert(t[way], x) end
for line in io.lines(arg[1]) do
  local w = {}
  for word in line:gmatch "%S+" do w[#w + 1] = word end
  if w[1] == "cpu" then add(cpu, w[2], (w[4] - w[3]) / arg[2]) else add(time, w[2], tonumber(w[3])) end
end
local function median(t) table.sort(t) return (t[(#t + 1) // 2] + t[#t // 2 + 1]) / 2 end
local one, one_cpu, worst = median(time.one), median(cpu.one), 0
print(("%-10s %10s %8s %12s %8s"):format("layout", "ms a step", "ratio", "CPU ms", "ratio"))
for way in arg[3]:gmatch "%S+" do
  local s, c = median(time[way]), median(cpu[way])
  print(("%-10s %10.1f %8.2f %12.1f %8.2f"):format(way, s * 1e3, s / one, c * 1e3, c / one_cpu))
  if not way:find "mpi" then worst = math.max(worst, math.min(s / one, c / one_cpu)) end
end
os.exit(worst <= 1.5)
EOF
