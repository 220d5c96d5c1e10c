#!/usr/bin/env python3
"""Compares two training logs, or two safetensors files; the standard library suffices.

    oracle_compare.py A.jsonl B.jsonl [--loss 1e-5] [--norm 1e-4]
    oracle_compare.py --tensors A.safetensors B.safetensors [--tol 1e-5]

Prints the worst differences on one line; exit status 1 if one exceeds its limit, or if the files do not hold the same
steps or tensors. B is the reference.

Two numbers differ by |a - b| / max(|a|, |b|); two zeros are equal. Two tensors differ by max|a - b| / max|b|, so that
an element near zero is judged by the size of its tensor; a tensor of zeros must be zeros. A NaN exceeds every limit:
comparisons are written so that it fails them.
"""
import argparse
import json
import math
import sys

sys.dont_write_bytecode = True
from oracle import read_safetensors  # noqa: E402  (beside this file)


def read_log(path):
    """step -> {"loss": ..., "grad_norm": ...}; lines that are no step are skipped."""
    steps = {}
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
            except ValueError:
                sys.exit("oracle_compare: %s:%d: not JSON" % (path, number))
            if isinstance(entry, dict) and "step" in entry and "loss" in entry:
                if entry["step"] in steps:
                    sys.exit("oracle_compare: %s:%d: step %s twice" % (path, number, entry["step"]))
                steps[entry["step"]] = entry
    return steps


def relative(a, b):
    if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in (a, b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def compare_logs(path_a, path_b, limits):
    a, b = read_log(path_a), read_log(path_b)
    if not b or set(a) != set(b):
        print("%d steps against %d" % (len(a), len(b)))
        return False
    good, parts = True, []
    for key, limit in limits.items():
        worst, step = max((relative(a[n].get(key), b[n].get(key)), -n) for n in b)
        good = good and worst <= limit
        parts.append("%s %.1e%s" % (key, worst, "" if worst <= limit else " (step %d, limit %g)" % (-step, limit)))
    print("  ".join(parts))
    return good


def compare_tensors(path_a, path_b, limit):
    a, b = read_safetensors(path_a), read_safetensors(path_b)
    if set(a) != set(b):
        print("missing or unknown: " + ", ".join(sorted(set(a) ^ set(b))))
        return False
    worst, where = 0.0, "none differs"
    for name in sorted(b):
        if a[name][1] != b[name][1]:
            print("%s: shape %s against %s" % (name, a[name][1], b[name][1]))
            return False
        size = max(map(abs, b[name][2]), default=0.0)
        for i, (x, y) in enumerate(zip(a[name][2], b[name][2])):
            if not (math.isfinite(x) and math.isfinite(y)):
                gap = math.inf
            elif x == y:
                gap = 0.0
            else:
                gap = abs(x - y) / size if size else math.inf
            if gap > worst:
                worst, where = gap, "%s, element %d: %.9g against %.9g" % (name, i, x, y)
    print("tensors %.1e%s  (%s)" % (worst, "" if worst <= limit else " (limit %g)" % limit, where))
    return worst <= limit


def main():
    parser = argparse.ArgumentParser(
        description="Worst differences of two logs or of two safetensors files; B is the reference.")
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--loss", type=float, default=1e-5, help="limit, relative; default %(default)s")
    parser.add_argument("--norm", type=float, default=1e-4, help="limit, relative; default %(default)s")
    parser.add_argument("--tensors", action="store_true", help="compare safetensors files")
    parser.add_argument("--tol", type=float, default=1e-5, help="limit for tensors; default %(default)s")
    o = parser.parse_args()
    if o.tensors:
        good = compare_tensors(o.a, o.b, o.tol)
    else:
        good = compare_logs(o.a, o.b, {"loss": o.loss, "grad_norm": o.norm})
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
