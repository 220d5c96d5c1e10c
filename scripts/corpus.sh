#!/bin/sh
# corpus.sh [FILE|-] [OUT]: prepares the text to train on, build/corpus.txt unless OUT is given.
#
# The text is FILE, or (no FILE, or "-") English from Debian: the fortunes and the Jargon File, whose packages are
# installed when they are missing. Prints the size and the unigram entropy: the loss of a model that knows how often
# each byte occurs and nothing else. Same packages, same bytes; the file appears whole or not at all.
set -eu
LC_ALL=C
export LC_ALL

file=${1:--}
out=${2:-$(dirname "$0")/../build/corpus.txt}
fortunes=/usr/share/games/fortunes
jargon=/usr/share/dictd/jargon.dict.dz

die() {
    echo "corpus.sh: $*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "the packages fortunes and dict-jargon are missing; install them, or name a text file: corpus.sh FILE"
    fi
}

texts_exist() { [ -d "$fortunes" ] && [ -f "$jargon" ]; }

install_texts() {
    texts_exist && return
    command -v apt-get >/dev/null || die "this is no Debian, so name a text file: corpus.sh FILE"
    echo "installing the packages fortunes and dict-jargon" >&2
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get install -y --no-install-recommends fortunes fortunes-min dict-jargon >/dev/null ||
        { as_root apt-get update >/dev/null &&
          as_root apt-get install -y --no-install-recommends fortunes fortunes-min dict-jargon >/dev/null; } ||
        die "apt-get could not install fortunes and dict-jargon"
    texts_exist || die "the packages are installed, but $fortunes or $jargon is missing"
}

# the plain files of the folder itself: not the indices (.dat), not the links (.u8) to the same texts
english() {
    find "$fortunes" -maxdepth 1 -type f ! -name '*.dat' ! -name '*.u8' | sort | while IFS= read -r f; do
        cat "$f"
    done
    gzip -dc <"$jargon"  # a .dz file is a gzip file with an index
}

describe() {
    od -An -v -tu1 "$1" | awk '
        { for (i = 1; i <= NF; i++) count[$i]++; n += NF }
        END {
            for (i = 0; i < 256; i++) if (count[i]) { p = count[i] / n; h -= p * log(p); kinds++ }
            printf "%d bytes, %d different, unigram entropy %.4f nat\n", n, kinds, h
        }'
}

temporary=$out.tmp.$$
trap 'rm -f "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
if [ "$file" = - ]; then
    install_texts
    mkdir -p "$(dirname "$out")"
    english >"$temporary" || die "cannot write $out"
else
    [ -f "$file" ] || die "there is no file $file"
    [ -s "$file" ] || die "$file is empty"
    mkdir -p "$(dirname "$out")"
    cat "$file" >"$temporary" || die "cannot write $out"
fi
mv "$temporary" "$out"
echo "$out: $(describe "$out")"
