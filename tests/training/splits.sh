#!/bin/sh
# splits.sh BUILD: every split of one global batch into micro-batches has the same loss (1e-6) and gradient norm (1e-5) at
# step 1, with micro-batches of unequal numbers of valid targets, one of which has none.
. "$(dirname "$0")/common.sh"
python3 - "$work/text" <<'PY'
import sys
text = open(sys.argv[1], "rb").read()
seq = 16                                  # window 2 is all spaces: a micro-batch of one sample without valid targets
open(sys.argv[1], "wb").write(text[:2 * seq] + b" " * (seq + 1) + text[3 * seq + 1:])
PY
for m in llama llama-tied gpt2 mlp; do
    for ignore in "" "--ignore 32"; do
        for split in "12 1" "6 2" "4 3" "3 4" "2 6" "1 12"; do
            compile $m "$work/p" --seq 16 --micro-batch "${split% *}" --accum "${split#* }" || continue
            # shellcheck disable=SC2086
            train "$work/p" "$work/run" --steps 1 $ignore || continue
            [ "$split" = "12 1" ] && cp "$work/run.jsonl" "$work/whole.jsonl" && continue
            if python3 "$top/scripts/oracle_compare.py" "$work/whole.jsonl" "$work/run.jsonl" --loss 1e-6 --norm 1e-5 >"$work/compare"; then ok
            else bad "$m $ignore micro-batch x accum $split: $(tail -n 1 "$work/compare")"; fi
        done
    done
done
finish
