#!/usr/bin/env python3
"""Writes the seeds of fuzz_safetensors and fuzz_tokens: tests/fuzz/seeds.py (no arguments, no dependencies).

The files are kept in the repository; this script says what each of them is. Same bytes at every run. The seeds of
fuzz_plan are written by `test_plan tests/fuzz/corpus/plan`: they are the plans of the unit tests.
"""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"


def save(folder, name, data):
    (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    (CORPUS / folder / name).write_bytes(data)


def weights(name, header, data=b"", length=None):
    if not isinstance(header, bytes):
        header = json.dumps(header, separators=(",", ":")).encode()
    save("safetensors", name, struct.pack("<Q", len(header) if length is None else length) + header + data)


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors():
    f32 = tensor("F32", [2], 0, 8)
    eight = bytes(range(8))
    weights("good", {"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 2], 0, 16), "b": tensor("BF16", [3], 16, 22)},
            bytes(range(22)))
    weights("good-all-dtypes", {n: tensor(n, [1], 8 * i, 8 * i + s) if s == 8 else tensor(n, [8 // s], 8 * i, 8 * i + 8)
                                for i, (n, s) in enumerate([("F64", 8), ("F32", 4), ("F16", 2), ("BF16", 2), ("I64", 8),
                                                            ("I32", 4), ("I16", 2), ("U8", 1), ("BOOL", 1), ("C64", 8)])},
            bytes(range(80)))
    weights("good-unaligned", {"a": tensor("U8", [1], 0, 1), "b": tensor("F64", [1], 1, 9)}, bytes(9))
    weights("good-unsorted", {"a": tensor("F32", [1], 4, 8), "b": tensor("F32", [1], 0, 4)}, eight)
    weights("good-scalar-and-none", {"a": tensor("F32", [], 0, 4), "b": tensor("F32", [0, 3], 4, 4)}, bytes(4))
    weights("good-unknown-dtype", {"a": tensor("F4", [3], 0, 2)}, bytes(2))
    weights("good-no-tensors", {})
    save("safetensors", "empty", b"")
    save("safetensors", "seven-bytes", bytes(7))
    weights("length-2-to-63", b"{}", length=1 << 63)
    weights("length-max", b"{}", length=(1 << 64) - 1)
    weights("length-just-over", b"{}", length=3)
    weights("length-zero", b"", b"{}")
    weights("length-short", {"a": f32}, eight, length=5)
    weights("truncated-data", {"a": f32}, eight[:5])
    weights("trailing-data", {"a": f32}, eight + b"x")
    weights("overlap", {"a": f32, "b": tensor("F32", [1], 4, 8)}, eight)
    weights("same-bytes-twice", {"a": f32, "b": f32}, eight)
    weights("gap", {"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 8, 12)}, bytes(12))
    weights("offsets-reversed", {"a": tensor("F32", [2], 8, 0)}, eight)
    weights("offsets-past-2-to-53", {"a": tensor("F32", [2], 0, 1 << 60)}, eight)
    weights("offsets-negative", {"a": tensor("F32", [2], -8, 0)}, eight)
    weights("offsets-three", {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, eight)
    weights("offsets-text", {"a": {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]}}, eight)
    weights("shape-overflow", {"a": tensor("F32", [1 << 40, 1 << 40], 0, 8)}, eight)
    weights("shape-overflow-to-2", {"a": tensor("F32", [1 << 32, 1 << 31, 2], 0, 0)})
    weights("shape-overflow-and-zero", {"a": tensor("F32", [1 << 40, 1 << 40, 0], 0, 0)})
    weights("shape-bytes-overflow", {"a": tensor("F64", [1 << 52, 1 << 9], 0, 0)})
    weights("shape-negative", {"a": tensor("F32", [-2], 0, 8)}, eight)
    weights("shape-fraction", {"a": tensor("F32", [2.5], 0, 8)}, eight)
    weights("shape-17-dimensions", {"a": tensor("F32", [1] * 16 + [2], 0, 8)}, eight)
    weights("shape-is-object", {"a": tensor("F32", {"0": 2}, 0, 8)}, eight)
    weights("shape-does-not-fit", {"a": tensor("F32", [3], 0, 8)}, eight)
    weights("dtype-number", {"a": tensor(32, [2], 0, 8)}, eight)
    weights("no-offsets", {"a": {"dtype": "F32", "shape": [2]}}, eight)
    weights("unknown-field", {"a": dict(f32, colour="red")}, eight)
    weights("tensor-is-null", {"a": None})
    weights("metadata-is-list", {"__metadata__": [1, [2]], "a": f32}, eight)
    one = json.dumps(f32)
    weights("duplicate-name", f'{{"a":{one},"a":{one}}}'.encode(), eight)
    weights("duplicate-field", b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight)
    weights("array-at-top", b"[1,2,3]")
    weights("two-values", b"{}{}")
    weights("spaces-behind", b"{}      ")
    weights("unfinished-string", b'{"a')
    weights("unfinished-key", b'{"1":1,')
    weights("unfinished-escape", b'{"a\\u12')
    weights("lone-surrogate", b'{"\\ud800":1}')
    weights("nul-escaped", b'{"a\\u0000b":1}')
    weights("nul-raw", b'{"a\0b":1}')
    weights("name-invalid-utf8", f'{{"?":{one}}}'.encode().replace(b"?", b"\xff\xfe"), eight)
    weights("name-with-newline", b'{"a\\nb":1}')
    weights("name-empty", {"": f32}, eight)
    weights("name-long", {"n" * 300: 1})
    weights("number-long", b'{"a":{"dtype":"F32","shape":[' + b"9" * 100 + b'],"data_offsets":[0,8]}}', eight)
    weights("number-infinite", b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}}', eight)
    weights("deep", b"{" + b'"a":{' * 1100)
    weights("deep-list", b'{"a":' + b"[" * 1100)
    save("safetensors", "zip", b"PK\3\4" + bytes(30))
    save("safetensors", "pickle", b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    save("safetensors", "index-json", b'{"metadata":{"total_size":1},"weight_map":{}}')
    save("safetensors", "lfs-pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def shard(name, magic, version, count, tokens=b"", order="<"):
    save("tokens", name, struct.pack(order + "III", magic, version, count) + bytes(1024 - 12) + tokens)


def tokens():
    narrow, wide = (20240520, 1), (20240801, 7)
    shard("good-narrow", *narrow, 3, struct.pack("<3H", 1, 50256, 65535))
    shard("good-wide", *wide, 2, struct.pack("<2I", 1, 128255))
    shard("good-none", *narrow, 0)
    shard("wide-id-over-31-bits", *wide, 2, struct.pack("<2I", 1, 0xFFFFFFFF))
    shard("truncated", *narrow, 4, bytes(6))
    shard("truncated-in-token", *narrow, 3, bytes(5))
    shard("trailing", *narrow, 2, bytes(6))
    shard("count-negative", *narrow, 0xFFFFFFFF, bytes(6))
    shard("count-wraps-wide", *wide, 0x40000000, bytes(4))
    shard("count-in-bytes", *narrow, 6, bytes(6))
    shard("version-unknown", 20240520, 2, 3, bytes(6))
    shard("version-of-the-other", 20240520, 7, 3, bytes(6))
    shard("version-1-wide", 20240801, 1, 3, bytes(12))
    shard("big-endian", *narrow, 3, bytes(6), order=">")
    shard("big-endian-wide", *wide, 3, bytes(12), order=">")
    head = struct.pack("<III", *narrow, 0)
    save("tokens", "magic-alone", head[:4])
    save("tokens", "magic-cut", head[:3])
    save("tokens", "header-cut", head + bytes(1011))
    save("tokens", "header-12-bytes", head)
    save("tokens", "empty", b"")
    save("tokens", "one-byte", b"a")
    save("tokens", "text", b"It was a dark and stormy night.\n")
    save("tokens", "text-utf8", "Größe, naïve, 東京\n".encode())
    save("tokens", "text-invalid-utf8", bytes(range(256)))
    save("tokens", "text-zero-bytes", bytes(64))
    save("tokens", "nanogpt", struct.pack("<8H", *range(8)))
    save("tokens", "numpy", b"\x93NUMPY\1\0v\0{'descr': '<u2', 'fortran_order': False, 'shape': (3,)}\n" + bytes(6))
    save("tokens", "npz", b"PK\3\4" + bytes(30))
    save("tokens", "gzip", b"\x1f\x8b\x08" + bytes(15))
    save("tokens", "zstd", b"\x28\xb5\x2f\xfd" + bytes(9))
    save("tokens", "parquet", b"PAR1\x15" + bytes(9))
    save("tokens", "safetensors", struct.pack("<Q", 16) + b'{"__metadata__":{}}')
    save("tokens", "plan", b"picoplan" + bytes(24))


safetensors()
tokens()
