"""Writes safetensors/testdata/accepted and refused: small files, and in verdicts.json what the reference (safetensors 0.8) says of each.

    pip install safetensors==0.8.0 && python testdata/gen/safetensors_headers.py
"""

import json, pathlib, shutil, struct

from safetensors import deserialize

HERE = pathlib.Path(__file__).parents[2] / "safetensors/testdata"


def file(header, data=b"", n=None):
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if n is None else n) + header + data


def entry(dtype="F32", shape="[1]", offsets="[0,4]", more=""):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}'


def one(*args, size=4, **kw):
    return file('{"a":%s}' % entry(*args, **kw), b"\1" * size)


E, D = entry(), b"\1\2\3\4"

accepted = {
    "plain": one(),
    "no-tensors": file("{}"),
    "metadata-empty": file('{"__metadata__":{},"a":%s}' % E, D),
    "metadata-null": file('{"__metadata__":null,"a":%s}' % E, D),
    "metadata-filled": file('{"__metadata__":{"format":"pt","":"\\u00e9"},"a":%s}' % E, D),
    "metadata-last": file('{"a":%s,"__metadata__":{"format":"pt"}}' % E, D),
    "white-space": file('{ "a" :\n{\t"dtype": "F32", "shape" : [ 1 ] ,"data_offsets":[0 , 4 ]\r} } \n\t ', D),
    "escapes": file('{"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\uDE00\\u0000":%s}' % E, D),
    "escaped-keys": file('{"a":{"d\\u0074ype":"F3\\u0032","shape":[1],"data_offsets":[0,4]}}', D),
    "raw-utf8": file('{"é😀\u2028":%s}' % E, D),
    "name-empty": file('{"":%s}' % E, D),
    "not-in-order": file('{"a":%s,"b":%s}' % (entry(offsets="[4,8]"), E), D * 2),
    "zero-size-at-a-seam": file('{"a":%s,"b":%s,"c":%s}' % (E, entry(shape="[0,3]", offsets="[4,4]"), entry(offsets="[4,8]")), D * 2),
    "zero-size-first": file('{"a":%s,"b":%s}' % (E, entry(shape="[0]", offsets="[0,0]")), D),
    "zero-before-large": one(shape="[0,4611686018427387904,8]", offsets="[0,0]", size=0),
    "scalar": one(shape="[]"),
    "f4-even": one("F4", "[4]", "[0,2]", size=2),
    "f6-whole-bytes": one("F6_E2M3", "[4]", "[0,3]", size=3),
    "f6-e3m2": one("F6_E3M2", "[2,2]", "[0,3]", size=3),
    "dtype-unknown": one("Q4_K", "[3]", "[0,5]", size=5),
    "unaligned-start": file('{"a":%s} ' % E, D),
}

refused = {
    "empty-file": b"",
    "seven-bytes": b"\1\2\3\4\5\6\7",
    "lfs-pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4960000000\n",
    "zip": b"PK\x03\x04" + b"\0\0\x08\x08" + b"\0" * 22 + b"archive/data.pkl",
    "pickle-2": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
    "pickle-4": b"\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00}\x94.",
    "header-too-large": file("{}", n=100_000_001),
    "header-beyond-file": file("{}", n=1000),
    "header-beyond-file-by-one": file("{}", n=3),
    "header-no-bytes": file(""),
    "header-array": file("[]"),
    "header-bom": file(b"\xef\xbb\xbf{}"),
    "header-leading-space": file(' {"a":%s}' % E, D),
    "header-json-cut": file('{"a":{"dtype":"F32"'),
    "header-junk-behind": file('{"a":%s}x' % E, D),
    "header-trailing-comma": file('{"a":%s,}' % E, D),
    "header-no-colon": file('{"a" %s}' % E, D),
    "header-single-quotes": file("{'a':%s}" % E, D),
    "utf8-invalid": file(b'{"\xff":%s}' % E.encode(), D),
    "utf8-surrogate": file(b'{"\xed\xa0\x80":%s}' % E.encode(), D),
    "utf8-in-metadata": file(b'{"__metadata__":{"k":"\xc3"},"a":%s}' % E.encode(), D),
    "string-control": file('{"a\x01":%s}' % E, D),
    "string-lone-surrogate": file('{"\\ud800x":%s}' % E, D),
    "string-low-surrogate": file('{"\\udc00":%s}' % E, D),
    "string-bad-escape": file('{"\\x41":%s}' % E, D),
    "string-short-escape": file('{"\\u00g0":%s}' % E, D),
    "string-open": file('{"a'),
    "duplicate-name": file('{"a":%s,"b":%s,"a":%s}' % (E, entry(offsets="[4,8]"), entry(offsets="[8,12]")), D * 3),
    "duplicate-same": file('{"a":%s,"a":%s}' % (E, E), D),
    "duplicate-escaped": file('{"a":%s,"\\u0061":%s}' % (E, E), D),
    "duplicate-inner": file('{"a":{"dtype":"F32","shape":[1],"dtype":"F32","data_offsets":[0,4]}}', D),
    "duplicate-metadata": file('{"__metadata__":{},"a":%s,"__metadata__":{}}' % E, D),
    "duplicate-metadata-key": file('{"__metadata__":{"x":"1","x":"2"},"a":%s}' % E, D),
    "metadata-number": file('{"__metadata__":{"x":1},"a":%s}' % E, D),
    "metadata-null-value": file('{"__metadata__":{"x":null},"a":%s}' % E, D),
    "metadata-array": file('{"__metadata__":[],"a":%s}' % E, D),
    "entry-null": file('{"a":null}'),
    "entry-array": file('{"a":["F32",[1],[0,4]]}', D),
    "entry-no-dtype": file('{"a":{"shape":[1],"data_offsets":[0,4]}}', D),
    "entry-no-shape": file('{"a":{"dtype":"F32","data_offsets":[0,4]}}', D),
    "entry-no-offsets": file('{"a":{"dtype":"F32","shape":[1]}}', D),
    "entry-unknown-key": one(more=',"strides":[1]'),
    "dtype-number": file('{"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}}', D),
    "shape-number": one(shape="1"),
    "shape-negative": one(shape="[-1]"),
    "shape-negative-zero": one(shape="[-0]", offsets="[0,0]", size=0),
    "shape-fraction": one(shape="[1.5]"),
    "shape-fraction-zero": one(shape="[1.0]"),
    "shape-exponent": one(shape="[1e0]"),
    "shape-leading-zero": one(shape="[01]"),
    "shape-65-bits": one(shape="[18446744073709551616]"),
    "shape-string": one(shape='["1"]'),
    "offsets-one": one(offsets="[4]"),
    "offsets-three": one(offsets="[0,4,4]"),
    "offsets-reversed": one(offsets="[4,0]"),
    "hole-at-start": one(offsets="[4,8]", size=8),
    "hole-between": file('{"a":%s,"b":%s}' % (E, entry(offsets="[6,10]")), D * 2 + b"\0\0"),
    "overlap": file('{"a":%s,"b":%s}' % (entry(shape="[2]", offsets="[0,8]"), entry(offsets="[4,8]")), D * 2),
    "overlap-same": file('{"a":%s,"b":%s}' % (E, E), D),
    "overlap-zero-size-inside": file('{"a":%s,"b":%s}' % (entry(shape="[2]", offsets="[0,8]"), entry(shape="[0]", offsets="[4,4]")), D * 2),
    "size-overflow": one(shape="[4294967296,4294967296]", offsets="[0,0]", size=0),
    "size-overflow-by-width": one(shape="[4611686018427387904]", offsets="[0,0]", size=0),
    "size-overflow-before-zero": one(shape="[4611686018427387904,8,0]", offsets="[0,0]", size=0),
    "partial-byte-f4": one("F4", "[3]", "[0,2]", size=2),
    "partial-byte-f6": one("F6_E3M2", "[3]", "[0,3]", size=3),
    "size-mismatch": one(shape="[2]"),
    "size-mismatch-bf16": one("BF16", "[2,2]", "[0,4]"),
    "file-short": one(size=3),
    "file-without-data": one(size=0),
    "file-trailing": one(size=5),
    "file-trailing-no-tensors": file("{}", b"\0"),
}


def verdict(data):
    try:
        deserialize(data)
        return "accepts"
    except Exception as e:
        return str(e).removeprefix("Error while deserializing: ")


verdicts = {}
for folder, files in (("accepted", accepted), ("refused", refused)):
    shutil.rmtree(HERE / folder, ignore_errors=True)
    (HERE / folder).mkdir(parents=True)
    for name, data in files.items():
        (HERE / folder / f"{name}.safetensors").write_bytes(data)
        verdicts[f"{folder}/{name}"] = verdict(data)
(HERE / "verdicts.json").write_text(json.dumps(verdicts, indent=1) + "\n")
for name, v in verdicts.items():
    if name.startswith("accepted") != (v == "accepts"):
        print(f"{name}: the reference {v}")
