#!/bin/sh
# golden.sh BUILD [--bless]: the graph after each pass, as text, is what tests/passes/golden/NAME.PASS.ir says; the kernels
# are what NAME.c says. --bless rewrites these files: read the difference before you commit it.
set -u
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/golden" || exit 2
bless=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
for model in *.lua; do
    name=${model%.lua}
    "$build/picoc" "$model" --seq 5 --micro-batch 2 --dump=all --dump-dir "$work" --emit "$work/kernels" >"$work/out" 2>&1 ||
        { cat "$work/out"; failed=$((failed + 1)); continue; }
    for dump in "$work"/*-*.ir; do
        pass=${dump##*-} pass=${pass%.ir}
        mv "$dump" "$work/$name.$pass.ir"
    done
    for kernel in "$work"/kernels/*.c; do sed -n '/^\/\/ ---- kernels/,$p' "$kernel" | sed 1d; done >"$work/$name.c"
    for new in "$work/$name".*; do
        golden=${new##*/}
        [ "$bless" = --bless ] && cp "$new" "$golden"
        if cmp -s "$new" "$golden"; then passed=$((passed + 1))
        else failed=$((failed + 1)); echo "FAILED: $golden"; diff "$golden" "$new" 2>&1 | head -n 6; fi
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
