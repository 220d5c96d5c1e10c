#!/bin/sh
# bf16.sh BUILD: master weights are real: a gain at 1.0 moves within 1000 steps at lr 3e-4 (a bf16 weight alone never would),
# and the loss after 100 steps is within 1 % of fp32.
. "$(dirname "$0")/common.sh"
small="-D hidden_size=32 -D intermediate_size=48 -D num_hidden_layers=1 -D num_attention_heads=2 -D num_key_value_heads=1"
for dtype in f32 bf16; do
    # shellcheck disable=SC2086
    "$build/picoc" "$top/graphs/llama.lua" $small --seq 16 --micro-batch 4 --dtype $dtype -o "$work/$dtype" || bad "picoc $dtype"
    train "$work/$dtype" "$work/$dtype-100" --steps 100 --lr 1e-3
done
train "$work/bf16" "$work/gain" --steps 1000 --lr 3e-4 --clip 0 --warmup 0 --decay constant
python3 - "$work" <<'PY' && ok || bad "gains or loss"
import json, struct, sys
work = sys.argv[1]
def losses(name): return [json.loads(l)["loss"] for l in open(f"{work}/{name}.jsonl")]
a, b = (sum(losses(n)[-10:]) / 10 for n in ("f32-100", "bf16-100"))
print(f"loss f32 {a:.4f} bf16 {b:.4f}")
raw = open(work + "/gain.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8:8 + n])
t = head["model.norm.weight"]
lo, hi = t["data_offsets"]
gain = struct.unpack(f"<{(hi - lo) // 4}f", raw[8 + n + lo:8 + n + hi])
moved = max(abs(x - 1) for x in gain)
print(f"the gain moved by up to {moved:.4f}")
sys.exit(not (abs(a - b) < 0.01 * a and moved > 1e-3))
PY
finish
