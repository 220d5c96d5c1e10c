#!/bin/sh
# cuda.sh BUILD: all generated CUDA compiles with NVRTC for sm_80, sm_90 and sm_100. Without the toolkit: skipped (exit 77).
. "$(dirname "$0")/../training/common.sh"
[ -x "$build/nvrtc_check" ] || { echo "nvrtc_check was not built"; exit 1; }
"$build/nvrtc_check" --available || { echo "skipped: no NVRTC on this machine"; exit 77; }
for m in llama gpt2 qwen3 mlp muon; do
    for dtype in f32 bf16; do
        compile $m "$work/p" --seq 16 --target cuda --dtype $dtype --emit "$work/$m-$dtype" || continue
        if "$build/nvrtc_check" "$work/$m-$dtype"/*.cu >"$work/log" 2>&1; then ok; else bad "$m $dtype: $(head -n 3 "$work/log")"; fi
    done
done
finish
