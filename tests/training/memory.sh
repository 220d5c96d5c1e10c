#!/bin/sh
# memory.sh BUILD: the report's bytes are what the runtime allocates (1 %), and what the process needs beyond an empty run (5 %
# and the libraries' scratch).
. "$(dirname "$0")/common.sh"
big="-D hidden_size=512 -D intermediate_size=1376 -D num_hidden_layers=4 -D num_attention_heads=8 -D num_key_value_heads=4"
# shellcheck disable=SC2086
"$build/picoc" "$top/graphs/llama.lua" $big --seq 128 --micro-batch 8 -o "$work/big" --report="$work/big.json" || bad "picoc"
"$build/picoc" "$top/graphs/llama.lua" -D num_hidden_layers=1 -D hidden_size=12 -D intermediate_size=12 --seq 4 --micro-batch 1 -o "$work/empty" || bad "picoc"
python3 - "$build" "$work" <<'PY'
import json, os, re, subprocess, sys
build, work = sys.argv[1:]
def peak(plan):
    with open(work + "/out", "w") as out:
        child = subprocess.Popen([build + "/picorun", plan, "--data", work + "/text", "--steps", "3", "--threads", "2"], stdout=out, stderr=out)
        _, status, usage = os.wait4(child.pid, 0)
    if status: sys.exit(open(work + "/out").read())
    return usage.ru_maxrss * 1024, open(work + "/out").read()
peak(work + "/empty"), peak(work + "/big")                      # kernels are compiled and cached here
empty, _ = peak(work + "/empty")
whole, text = peak(work + "/big")
report = json.load(open(work + "/big.json"))["memory"]
said = report["total"] + 2 * report["scratch_per_thread"]
scratch = 24 << 20                                              # oneDNN's packed panels, two threads
print(f"report {said}, resident beyond an empty run {whole - empty}")
sys.exit(abs(whole - empty - said) > 0.05 * said + scratch)
PY
[ $? = 0 ] && ok || bad "resident size disagrees with the report"
finish
