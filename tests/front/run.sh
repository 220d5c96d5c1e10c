#!/bin/sh
# run.sh PICOC [--bless]: descriptions that compile, and descriptions that must be refused.
#   models/NAME.lua   compiles up to the gradient, and to the same bytes twice
#   errors/NAME.lua   ends with exit status 1 and the text errors/NAME.err on stderr, and nothing else
# A first line "-- args: ..." holds picoc's arguments. --bless writes the .err files anew.
picoc=$(realpath "$1") || exit 2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failed=0
count=0

args_of() { sed -n '1s/^-- args: //p' "$1"; }
complain() { echo "FAIL $*"; failed=1; }

cd "$here/errors" || exit 2
for f in *.lua; do
  name=${f%.lua}
  # shellcheck disable=SC2046
  timeout 60 "$picoc" "$f" $(args_of "$f") --stop grad >"$work/out" 2>"$work/err"
  status=$?
  count=$((count + 1))
  if [ "$2" = --bless ]; then cp "$work/err" "$name.err"; fi
  [ $status = 1 ] || complain "errors/$f: exit status $status, not 1"
  [ -s "$work/out" ] && complain "errors/$f: text on stdout"
  diff -u "$name.err" "$work/err" || complain "errors/$f"
done

cd "$here/models" || exit 2
for f in *.lua ../../../graphs/*.lua ../../../graphs/examples/*.lua; do
  case $f in */nn.lua) continue ;; esac
  for dtype in f32 bf16 f64; do
    count=$((count + 1))
    for run in 1 2; do
      # shellcheck disable=SC2046
      timeout 60 "$picoc" "$f" $(args_of "$f") --dtype $dtype --stop grad --dump=grad >"$work/$run" 2>"$work/err" ||
        complain "models/$f $dtype: $(cat "$work/err")"
    done
    cmp -s "$work/1" "$work/2" || complain "models/$f $dtype: two runs differ"
  done
done
echo "front: $count descriptions"
exit $failed
