#!/bin/sh
# Trains every case of cases.txt with pico in fp32 and fp64 and compares losses and gradient norms of ten steps with
# the recorded ones of an independent trainer (scripts/oracle.py, PyTorch). Needs python3, but not torch.
#
#   tests/oracle/run.sh BUILD_DIR [CASE ...]          picoc and picorun lie in BUILD_DIR
#   DTYPES=f64 tests/oracle/run.sh build llama-kv2    one dtype
#   KEEP=DIR ...                                      keeps inputs, plans, logs and messages in DIR/CASE.DTYPE
#
# A line a case and dtype with the worst relative differences, "N passed, N failed" at the end, status 1 if any failed.
# Limits: fp32 1e-5 of the loss and 1e-4 of the norm, fp64 1e-10 of both. The fixtures of two torch versions differ by
# 4e-7 and 3e-6 (fp32), 1e-15 and 3e-15 (fp64), so a difference near a limit is no rounding.
set -u

if [ $# -lt 1 ]; then
    echo "usage: tests/oracle/run.sh BUILD_DIR [CASE ...]" >&2
    exit 2
fi
build=$(cd "$1" && pwd) || exit 2
shift
cd "$(dirname "$0")/../.." || exit 2
for program in picoc picorun; do
    if [ ! -x "$build/$program" ]; then
        echo "run.sh: no program '$program' in $build" >&2
        exit 2
    fi
done

temporary=$(mktemp -d) || exit 2
trap 'rm -rf "$temporary"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
work=${KEEP:-$temporary}
mkdir -p "$work" && work=$(cd "$work" && pwd) || exit 2
XDG_CACHE_HOME=$temporary/cache         # the kernels of one case serve the next, and no cache of an earlier run does
PYTHONDONTWRITEBYTECODE=1
export XDG_CACHE_HOME PYTHONDONTWRITEBYTECODE
limit=""
command -v timeout >/dev/null && limit="timeout 300"

# explain NAME STATUS FILE: what a program said last; in FILE is its output.
explain() {
    printf '%s: status %s: %s' "$1" "$2" "$(tail -n 1 "$3")"
}

# train_case CASE DTYPE FOLDER: prints the differences, or what went wrong, on one line.
train_case() {
    python3 scripts/oracle.py --case "$1" --make-inputs "$3" >"$3/oracle.out" 2>&1 ||
        { explain oracle.py $? "$3/oracle.out"; return 1; }
    # the lists hold one argument a line, none with a space
    # shellcheck disable=SC2046
    $limit "$build/picoc" $(cat "$3/picoc.args") --dtype "$2" -o "$3/plan.bin" >"$3/picoc.out" 2>&1 ||
        { explain picoc $? "$3/picoc.out"; return 1; }
    # shellcheck disable=SC2046
    $limit "$build/picorun" "$3/plan.bin" --data "$3/text.bin" --init "$3/init.safetensors" \
        $(cat "$3/picorun.args") --log "$3/log.jsonl" >"$3/picorun.out" 2>&1 ||
        { explain picorun $? "$3/picorun.out"; return 1; }
    case $2 in
    f32) set -- "$@" --loss 1e-5 --norm 1e-4 ;;
    f64) set -- "$@" --loss 1e-10 --norm 1e-10 ;;
    esac
    name=$1 dtype=$2 folder=$3
    shift 3
    python3 scripts/oracle_compare.py "$folder/log.jsonl" "tests/oracle/$name.$dtype.jsonl" "$@" 2>&1
}

# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(python3 scripts/oracle.py --list)
passed=0
failed=0
for name in "$@"; do
    for dtype in ${DTYPES:-f32 f64}; do
        folder=$work/$name.$dtype
        rm -rf "$folder"
        mkdir -p "$folder" || exit 2
        if said=$(train_case "$name" "$dtype" "$folder"); then
            passed=$((passed + 1)) verdict=ok
        else
            failed=$((failed + 1)) verdict=FAIL
        fi
        printf '%-4s %-20s %s  %s\n' "$verdict" "$name" "$dtype" "$said"
        [ -n "${KEEP:-}" ] || rm -rf "$folder"
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
