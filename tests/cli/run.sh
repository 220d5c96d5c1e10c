#!/bin/sh
# run.sh BUILD: picoc and picorun as a careless or hostile user calls them: options, files, devices, signals.
# Checks exit statuses, that a refusal is one sentence with the words it must have, and that nothing is left behind.
build=$(realpath "$1") || exit 2
picoc=$build/picoc picorun=$build/picorun
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2
export XDG_CACHE_HOME="$work/the cache's \"\$(touch pwned)\""
unset CC
failed=0
count=0
complain() { echo "FAIL $*"; failed=1; }

# refuse STATUS PATTERN COMMAND...: this exit status, and one sentence on stderr that matches
refuse() {
  status=$1 pattern=$2
  shift 2
  timeout 60 "$@" >out 2>err </dev/null
  got=$?
  count=$((count + 1))
  [ $got = "$status" ] || complain "$*: exit status $got, not $status: $(cat err)"
  grep -q -- "$pattern" err || complain "$*: no '$pattern' in: $(cat err)"
  lines=$(grep -vc -e '^Try ' -e '^    ' err)
  [ "$lines" = 1 ] || complain "$*: $lines sentences: $(cat err)"
}

# accept COMMAND...: exit status 0 and nothing on stderr
accept() {
  timeout 60 "$@" >out 2>err </dev/null
  got=$?
  count=$((count + 1))
  [ $got = 0 ] || complain "$*: exit status $got: $(cat err)"
  [ -s err ] && complain "$*: says: $(cat err)"
}

holds() { count=$((count + 1)); "$@" || complain "$*"; }
absent() { for f in "$@"; do holds test ! -e "$f"; done; }

small="-D hidden_size=8 -D intermediate_size=16 -D num_hidden_layers=1 -D num_attention_heads=2 -D num_key_value_heads=1
  -D head_dim=4 --seq 8 --micro-batch 2"
cp "$root"/graphs/llama.lua model.lua
# shellcheck disable=SC2086
accept "$picoc" model.lua $small -o plan
seq 500 | tr '\n' ' ' >text

# ---- picoc: options
for option in --seq --micro-batch --accum; do
  for value in '' 0 -1 1.5 1e3 nan abc '5 ' 99999999999999999999; do
    refuse 2 "$option" "$picoc" model.lua -o x $option "$value"
  done
done
for option in -o -D --config --seq --dtype --recompute --target --dot --dot-level --explain --emit --dump-dir --stop --print; do
  refuse 2 "$option needs a value" "$picoc" model.lua $option
done
refuse 2 'none of f32, f64, bf16' "$picoc" model.lua -o x --dtype f16
refuse 2 'none of cpu, cuda' "$picoc" model.lua -o x --target tpu
refuse 2 'none of none, attention, full' "$picoc" model.lua -o x --recompute some
refuse 2 'none of model, layer, op, kernel' "$picoc" model.lua --dot x --dot-level all
refuse 2 'none of front, grad' "$picoc" model.lua --stop last
refuse 2 'none of front, grad' "$picoc" model.lua --dump=last
refuse 2 'did you mean --seq' "$picoc" model.lua -o x --sequ 8
refuse 2 'takes no value' "$picoc" model.lua -o x --no-fuse=1
refuse 2 'no model file' "$picoc"
refuse 2 'two model files' "$picoc" model.lua model.lua -o x
refuse 2 'nothing to do' "$picoc" model.lua
refuse 2 'write -D key=value' "$picoc" model.lua -o x -D hidden_size
refuse 2 'between 1 and 65536' "$picoc" model.lua -o x --accum 65537
refuse 2 'fewer than 2^31 tokens' "$picoc" model.lua -o x --seq 16777216 --micro-batch 128
refuse 1 'picorun would refuse' "$picoc" model.lua -o x --seq 16777216 --micro-batch 127
for place in model.lua :5 model.lua: model.lua:0 model.lua:5x model.lua:4294967325 ''; do
  refuse 2 'is not FILE:LINE' "$picoc" model.lua -o x --explain "$place"
done
refuse 1 'nothing of the graph' "$picoc" model.lua --explain model.lua:9999
# a line of Lua: equal layers and equal kernels once; a line of an op's text: the calls of the op, and of those it is in
line() { grep -n -m 1 -e "$1" "$2" | cut -d : -f 1; }
accept "$picoc" model.lua --explain "model.lua:$(line 'nn.attention' model.lua)"
holds grep -q '^model.layers.0, and 5 layers like it$' out
holds grep -q '^  x 6  layers 0..5  F      attention .* MB ' out
holds test "$(grep -c '= attention ' out)" = 1
accept "$picoc" model.lua --explain "nn.lua:$(line 'mean.hidden..x.2. + eps' "$root/graphs/nn.lua")"
holds grep -q '^rmsnorm, defined there, is called at model.lua:[0-9]* (13 times)$' out
accept "$picoc" model.lua --explain "nn.lua:$(line 'turned = where' "$root/graphs/nn.lua")"
holds grep -q '^rotate, defined there, is called by rope at model.lua:[0-9]* (12 times)$' out
holds grep -q '^total [0-9]* launches, .*B, .*FLOP ' out
accept "$picoc" model.lua --explain "model.lua:$(line 'm:train' model.lua)"
holds grep -q 'ran, and nothing of the graph comes from it' out
absent x

# ---- picoc: files
refuse 1 'No such file' "$picoc" nofile.lua -o x
refuse 1 'Is a directory' "$picoc" / -o x
refuse 1 'at most 16 MiB' "$picoc" /dev/zero -o x
truncate -s 1T huge
refuse 1 'at most 16 MiB' "$picoc" huge -o x
refuse 1 'too large' "$picoc" model.lua --config /dev/zero -o x
refuse 1 'too large' "$picoc" model.lua --config huge -o x
rm huge
refuse 1 'No such file' "$picoc" model.lua --config nofile -o x
refuse 1 'No such file' "$picoc" model.lua -o nofolder/x
refuse 1 'Is a directory' "$picoc" model.lua -o .
refuse 1 'No space left' "$picoc" model.lua -o /dev/full
refuse 1 'No space left' "$picoc" model.lua --dot /dev/full
refuse 1 'No space left' "$picoc" model.lua --report=/dev/full
refuse 1 'Not a directory' "$picoc" model.lua --emit /dev/full
refuse 1 'Not a directory' "$picoc" model.lua --dump-dir /dev/full
refuse 2 'overwrite an input' "$picoc" model.lua -o model.lua
refuse 2 'overwrite an input' "$picoc" model.lua -o x --dot ./model.lua
ln -s model.lua link
refuse 2 'overwrite an input' "$picoc" model.lua -o link
refuse 2 'name one file' "$picoc" model.lua -o x --dot ./x
refuse 2 'takes no model' "$picoc" --print plan model.lua
refuse 1 "does not begin with 'picoplan'" "$picoc" --print text
refuse 1 'not a regular file' "$picoc" --print /dev/zero
mkfifo pipe
refuse 1 'not a regular file' "$picoc" --print pipe
refuse 1 'not a regular file' "$picorun" pipe
echo 'error("from a pipe")' >pipe &
refuse 1 'pipe:1: from a pipe' "$picoc" pipe -o x
wait
holds cmp -s model.lua "$root/graphs/llama.lua"
for text in --help --version; do
  for program in "$picoc" "$picorun"; do
    accept "$program" $text
    refuse 1 'cannot write to the standard output' sh -c "'$program' $text >/dev/full"
  done
done
for look in --report --dump '--print plan' '--dot /dev/stdout'; do
  model=model.lua
  [ "$look" = '--print plan' ] && model=
  refuse 1 'No space left' sh -c "'$picoc' $model $look >/dev/full"
done
# Windows' line ends, a byte order mark, a first line for the shell: the same plan but for the text itself
sed 's/$/\r/' model.lua >crlf.lua
{ printf '\357\273\277#!/usr/bin/env picoc\n' && cat model.lua; } >bom.lua
accept "$picoc" crlf.lua -o x
accept "$picoc" bom.lua -o x
# a list of data files in the description
sed 's/data = "[^"]*"/data = { "nine", "text" }/' model.lua >list.lua
head -c 9 text >nine
# shellcheck disable=SC2086
accept "$picoc" list.lua $small -o list
accept "$picorun" list --steps 2
refuse 2 'control character' "$picoc" 'new
line.lua' -o x
folder='a "b'"' \\c \$(touch pwned) é"
mkdir "$folder"
cp model.lua "$folder/m \"é'.lua"
accept "$picoc" "$folder/m \"é'.lua" -o "$folder/plan" --dot "$folder/dot" --report="$folder/report" --emit "$folder/emit"
rm x
absent x pwned

# ---- picorun: options
for option in steps lr warmup min-lr beta1 beta2 eps clip weight-decay weight-decay-1d seed ignore threads; do
  refuse 2 "--$option needs a value" "$picorun" plan --$option
  for value in '' nan inf abc 0x10 1,5 1e400 -99999999999999999999; do
    refuse 2 "--$option" "$picorun" plan --device null --$option "$value"
  done
done
refuse 2 'no PLAN' "$picorun"
refuse 2 'a second plan' "$picorun" plan plan
refuse 2 "did you mean '--check-nan'" "$picorun" plan --chek-nan
refuse 2 'two dashes' "$picorun" plan -x
refuse 2 'takes no value' "$picorun" plan --poison=1
refuse 2 'takes no value' "$picorun" plan --no-shuffle=1
refuse 2 'cpu or null' "$picorun" plan --device cuda
refuse 2 'constant, cosine or linear' "$picorun" plan --decay never
refuse 2 'NAME=VALUE' "$picorun" plan --set lr
refuse 2 'use --lr' "$picorun" plan --set lr=1
refuse 2 'no number of that name' "$picorun" plan --set foo=1
refuse 2 'at least 1' "$picorun" plan --threads 0
refuse 2 'below 1' "$picorun" plan --beta1 1
refuse 2 'is zero in f32' "$picorun" plan --eps 1e-40
refuse 2 'is above --lr' "$picorun" plan --decay linear --min-lr 1 --lr 0.1
for option in save dump-grads log trace; do
  refuse 2 'nothing that could be saved' "$picorun" plan --device null --$option x
done
absent x

# ---- picorun: files
refuse 1 'No such file' "$picorun" nofile
refuse 1 'not a regular file' "$picorun" /dev/null
refuse 1 "does not begin with 'picoplan'" "$picorun" text
head -c 5000 plan >cut.file
refuse 1 "has 5000 bytes, its header says" "$picorun" cut.file
refuse 2 'needs a value' "$picorun" plan --data
refuse 1 'No such file' "$picorun" plan --data nofile
refuse 1 'is a folder' "$picorun" plan --data .
refuse 1 'not a regular file' "$picorun" plan --data /dev/zero
refuse 1 'not a regular file' "$picorun" plan --data pipe
: >empty
refuse 1 'is empty' "$picorun" plan --data empty
head -c 8 text >eight
refuse 1 'fewer than one window of 9' "$picorun" plan --data eight
accept "$picorun" plan --data nine --steps 3
run="$picorun plan --data text --steps 2"
for option in save dump-grads log trace counts; do
  # shellcheck disable=SC2086
  {
    refuse 1 'No such file' $run --$option nofolder/x
    refuse 2 'reads this file' $run --$option text
    refuse 2 'reads this file' $run --$option ./plan
  }
done
# shellcheck disable=SC2086
{
  refuse 2 'name one file' $run --log x --trace ./x
  refuse 1 'not a regular file' $run --save /dev/full
  refuse 1 'No space left' $run --log /dev/full
  refuse 1 'not complete' $run --trace /dev/full
  refuse 1 'standard output' sh -c "$run >/dev/full"
  refuse 1 'standard output' sh -c "$picorun plan --compile-only >/dev/full"
  absent x
  accept $run --steps 0 --save weights
  accept $run --init weights --save weights
  refuse 2 'reads this file' $run --init weights --log weights
  refuse 1 'not a safetensors file' $run --init plan
  refuse 1 'is a folder' $run --init .
  head -c 10000 weights >cut.file
  refuse 1 'claims bytes' $run --init cut.file
  head -c 600 weights >cut.file
  refuse 1 'truncated' $run --init cut.file
  refuse 1 'File too large' sh -c "ulimit -f 1; exec $run --save x"
  OMP_NUM_THREADS=100000 accept $run
  refuse 1 'the loss is nan; --check-nan tells' $run --steps 9 --lr 1e30 --save x
  refuse 1 'the first NaN is element' $run --steps 9 --lr 1e30 --check-nan --save x
  absent x
  # every target ignored: nothing counts, and nothing moves
  yes | tr -d '\n' | head -c 200 >same
  accept "$picorun" plan --data same --steps 3 --ignore 121 --weight-decay 0 --check-nan --save x
  accept $run --steps 0 --save y
  holds cmp x y
  rm x y
}

# ---- kernel cache and compiler
# shellcheck disable=SC2086
{
  CC=nofile refuse 1 "'nofile' is not found" $run
  CC='   ' refuse 1 'no C compiler' $run
  CC=false refuse 1 'refuses the kernels' $run
  CC=true refuse 1 'makes no object' $run
  rm -f "$XDG_CACHE_HOME"/pico/*.[0-9]*.c # the source that the message about CC=false names
  holds test -z "$(find "$XDG_CACHE_HOME" -type f ! -name '*.so')"
  printf '#!/bin/sh\nexec cc "$@"\n' >'my cc'
  chmod +x 'my cc'
  CC="$work/my cc" accept $run
  CC='cc -m64' accept $run
  for entry in "$XDG_CACHE_HOME"/pico/*.so; do head -c 100 "$entry" >cut.file && cp cut.file "$entry"; done
  accept $run
  XDG_CACHE_HOME=$work/race
  for i in 1 2 3 4; do (timeout 60 $run >"race.$i" 2>&1 || echo FAILED >>"race.$i") & done
  wait
  holds test "$(cat race.? | grep -c FAILED)" = 0
  holds test -z "$(find race -type f ! -name '*.so')"
  XDG_CACHE_HOME=$work/text TMPDIR=$work/nofolder refuse 1 'TMPDIR' sh -c "$run 2>&1 | grep -v warning >&2; exit 1"
}
absent pwned

# ---- signals: the weights are saved and the status tells which; a killed run leaves the old file
# start ARGUMENTS...: a run without end in the background, as $run_pid, once its first step is logged
start() {
  rm -f steps
  # env: a shell's background processes ignore SIGINT
  env --default-signal=INT "$picorun" plan --steps 1000000000 --log steps "$@" >out 2>err &
  run_pid=$!
  tries=0
  while [ ! -s steps ] && [ $tries -lt 300 ]; do sleep 0.1 && tries=$((tries + 1)); done
}

for signal in INT:130 TERM:143; do
  start --data text --save "$signal"
  kill -s "${signal%:*}" $run_pid
  wait $run_pid
  holds test $? = "${signal#*:}"
  holds test -s "$signal"
done
cp weights before
start --data text --save weights
kill -s KILL $run_pid
wait $run_pid 2>/dev/null
holds cmp weights before
cp text shrinks
start --data shrinks
: >shrinks
wait $run_pid
holds test $? = 1
holds grep -q 'made shorter' err
holds test -z "$(find . -name '*.tmp-*')"

# ---- ranks: threads of one process, processes of a launcher, or one for each stage on the null device
"$build/tests/rank_plan" ranks 2 2 2 && "$build/tests/rank_plan" alone 1 1 4 || complain "rank_plan"
steps() { sed 's/"grad_norm.*//' "$1"; }
run="$picorun ranks --data text --steps 3 --lr 1e-2"
# shellcheck disable=SC2086
{
  accept $run --log threads --save weights --dump-grads grads --trace trace --poison --check-nan
  holds grep -q 'pp 2 x dp 2 = 4 ranks as threads' out
  holds python3 -c 'import json; t = json.load(open("trace"))["traceEvents"]; assert {e["pid"] for e in t} == {0, 1, 2, 3}'
  accept "$picorun" ranks --steps 0 --init weights --save again
  holds cmp weights again
  OMP_PROC_BIND=true OMP_PLACES=cores PICO_DELAY_US=500 accept $run --log delayed
  holds test "$(steps threads)" = "$(steps delayed)"
  PICO_DELAY_US=1s refuse 1 'not a number of microseconds' $run
  refuse 1 'the loss is' $run --steps 500 --lr 1
  refuse 1 'rank [0-9], step .*the first NaN is element' $run --steps 500 --lr 1e30 --check-nan
  # what each stage counts is what the plan says: 2 of 4 ranks, 2 micro-batches
  accept "$picorun" ranks --device null --counts counts
  holds grep -q '^in all: 4 ranks' out
  accept $run --counts again
  holds cmp counts again
  holds python3 -c '
import json
stages = json.load(open("counts"))["stages"]
assert [s["ranks"] for s in stages] == [2, 2]
assert [s["kernels"]["count"] for s in stages] == [7, 7]
kinds = [sorted((c["group"], c["kind"], c["count"], c["bytes"]) for c in s["collectives"]) for s in stages]
assert kinds[0] == [("dp", "all_reduce", 1, 8192), ("pp x dp", "all_reduce", 1, 16)], kinds
assert kinds[1] == [("dp", "all_gather", 1, 256), ("dp", "reduce_scatter", 1, 256), ("pp x dp", "all_reduce", 1, 16)], kinds
assert [[(t["send"], t["count"], t["bytes"]) for t in s["transfers"]] for s in stages] == [
  [(True, 2, 512), (False, 2, 512)], [(False, 2, 512), (True, 2, 512)]]'
}
for signal in INT:130 TERM:143; do
  rm -f steps
  env --default-signal=INT "$picorun" ranks --data text --lr 0 --steps 1000000000 --log steps --save "$signal" >out 2>err &
  run_pid=$!
  tries=0
  while [ ! -s steps ] && [ $tries -lt 300 ]; do sleep 0.1 && tries=$((tries + 1)); done
  kill -s "${signal%:*}" $run_pid
  wait $run_pid
  holds test $? = "${signal#*:}"
  holds grep -q 'stopped by a signal' out
  holds test -s "$signal"
done

# ---- Open MPI, where it is installed: says more than one sentence when a run fails, so only ours is looked for
fails() { # PATTERN COMMAND...
  pattern=$1
  shift
  count=$((count + 1))
  timeout 60 "$@" >out 2>err </dev/null && complain "$*: succeeds"
  [ "$(grep -c '^picorun: ' err)" = 1 ] || complain "$*: not one sentence: $(cat err)"
  grep -q "^picorun: .*$pattern" err || complain "$*: no '$pattern' in: $(cat err)"
}
if command -v mpirun >mpirun.path; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  mpi="mpirun --oversubscribe -n"
  # shellcheck disable=SC2086
  {
    accept $mpi 4 $run --log processes --save mpi-weights --dump-grads mpi-grads
    holds test "$(steps threads)" = "$(steps processes)"
    holds cmp weights mpi-weights
    holds cmp grads mpi-grads
    accept $mpi 1 "$picorun" alone --data text --steps 2
    fails 'plan has 4 ranks.* 3 processes' $mpi 3 $run
    fails 'nofile cannot be opened' $mpi 4 $run --data nofile
    mkdir -p 0 1 2 3 && cp text 0 && cp text 1 && cp text 3
    # shellcheck disable=SC2016
    fails 'text cannot be opened' $mpi 4 sh -c 'cd $OMPI_COMM_WORLD_RANK && exec "$0" ../ranks --data text --steps 1000000000' "$picorun"
    fails 'the loss is' $mpi 4 $run --steps 500 --lr 1
  }
fi
holds test -z "$(find . -name '*.tmp-*')"
echo "cli: $count checks"
exit $failed
