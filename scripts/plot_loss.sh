#!/bin/sh
# plot_loss.sh LOG.jsonl OUT.svg [ENTROPY]: draws the loss of picorun's --log over the steps, by gnuplot.
#
# ENTROPY, in nats, is drawn as a dashed line: the loss of a model that knows only how often each byte occurs.
# Many steps are drawn twice: each one pale, and their running mean on top.
set -eu
LC_ALL=C
export LC_ALL

die() {
    echo "plot_loss.sh: $*" >&2
    exit 1
}

if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: plot_loss.sh LOG.jsonl OUT.svg [ENTROPY]" >&2
    exit 2
fi
log=$1 out=$2 entropy=${3:-}
case $entropy in *[!0-9.eE+-]*) echo "plot_loss.sh: $entropy is not a number" >&2; exit 2 ;; esac
command -v gnuplot >/dev/null || die "gnuplot is missing; install the package gnuplot-nox"
[ -f "$log" ] || die "there is no file $log"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# step, loss, running mean; a line without a finite loss is left out
sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([-+0-9.eE]*\)[,}].*/\1 \2/p' "$log" >"$work/steps"
[ -s "$work/steps" ] || die "$log has no steps with a loss"
awk -v n="$(wc -l <"$work/steps")" '
    BEGIN { width = n < 100 ? 1 : int(n / 50) }
    { sum += $2 - (NR > width ? last[NR % width] : 0); last[NR % width] = $2; print $1, $2, sum / (NR < width ? NR : width) }
' "$work/steps" >"$work/data"

cat >"$work/plot" <<EOF
set terminal svg size 800,500 font "sans-serif,14" background "white" name "loss"
set output "$work/out.svg"
set xlabel "step"
set ylabel "loss (nat per token)"
set grid lc rgb "#dddddd"
set border 3
set tics nomirror out
set key top right
set xrange [0:*]
set style line 1 lc rgb "#a6c8e4" lw 1
set style line 2 lc rgb "#1f5f99" lw 2
set style line 3 lc rgb "#b04a2f" lw 1.5 dt (8,5)
EOF
lines="\"$work/data\" using 1:2 with lines ls 2 title \"loss\""
[ "$(wc -l <"$work/steps")" -lt 100 ] ||
    lines="\"$work/data\" using 1:2 with lines ls 1 title \"each step\", \"\" using 1:3 with lines ls 2 title \"running mean\""
if [ -n "$entropy" ]; then
    lines="$lines, $entropy with lines ls 3 notitle"
    echo "set label 'unigram entropy $entropy' at graph 0.99, first $entropy right offset 0,0.7 tc rgb '#b04a2f'" >>"$work/plot"
fi
echo "plot $lines" >>"$work/plot"
gnuplot "$work/plot" || die "gnuplot failed"
cp "$work/out.svg" "$out" || die "cannot write $out"
echo "$out"
