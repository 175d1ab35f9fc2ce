"""Writes safetensors/testdata/reference.json: tensors, and the SHA-256 of the file that the reference writer makes of them.

    pip install safetensors==0.8.0 torch numpy && python testdata/gen/safetensors_reference.py

Every type that torch has is there. It lacks the two 6-bit ones, and safetensors' Python has no other way to write them.
"""

import base64, hashlib, json, pathlib, random, struct, tempfile

import safetensors
import torch
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).parents[2] / "safetensors/testdata/reference.json"
random.seed(20261130)
torch.manual_seed(20261130)


def raw(dtype, *shape):
    """A tensor of any type with random bits."""
    n = torch.empty(shape, dtype=dtype).nbytes
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (n,), dtype=torch.uint8)
    return bits.view(dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)


def describe(name, data):
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])
    metadata = header.pop("__metadata__", None)
    tensors = [
        {"name": k, "dtype": v["dtype"], "shape": v["shape"],
         "data": base64.b64encode(data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]]).decode()}
        for k, v in header.items()
    ]
    random.shuffle(tensors)
    return {"case": name, "metadata": metadata, "tensors": tensors,
            "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def saved(name, tensors, metadata=None, until=lambda data: True):
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp, "x.safetensors")
        while True:
            save_file(tensors, path, metadata=metadata)
            data = path.read_bytes()
            if until(data):
                return describe(name, data)


def keys_sorted(data):
    n = struct.unpack("<Q", data[:8])[0]
    keys = list(json.loads(data[8 : 8 + n])["__metadata__"])
    return keys == sorted(keys)


TYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
         "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"]
t = {n: getattr(torch, n) for n in TYPES}

cases = [
    saved("no tensors", {}),
    saved("no tensors, metadata", {}, {"format": "pt"}),  # with {} the reference writes the broken header {},"__metadata__":{}}
    saved("every type that torch saves", {f"t.{n}": raw(d, 3, 2) for n, d in t.items()}),
    saved("the order of types beats the order of names", {f"{i:02}.{n}": raw(d, 2) for i, (n, d) in enumerate(sorted(t.items()))}),
    saved("scalars", {f"s.{n}": raw(d) for n, d in t.items() if n != "float4_e2m1fn_x2"}),
    saved("zero sizes", {"a": raw(torch.float32, 0), "b": raw(torch.bfloat16, 3, 0, 2), "c": raw(torch.uint8, 5), "d": raw(torch.float32, 2)}),
    saved("odd sizes", {"a": raw(torch.uint8, 7), "b": raw(torch.bfloat16, 3), "c": raw(torch.float8_e4m3fn, 5), "d": raw(torch.float64, 1)}),
    saved("names", {n: raw(torch.uint8, 1) for n in [
        "Größe", "重み", "😀", "a\"b", "a\\b", "a/b", "a\tb\nc\rd\be\ff", "\x00\x01\x1f\x7f", "<script>&amp;'", "\u2028\u2029", "", " ", "é", "e\u0301",
        "Z", "a", "a.10", "a.2", "\uffff", "\U00010000"]}),
    saved("metadata", {"w": raw(torch.bfloat16, 4)}, {"format": "pt"}),
    saved("empty metadata", {"w": raw(torch.bfloat16, 4)}, {}),
    saved("escaped metadata", {"w": raw(torch.bfloat16, 4)}, {"kéy\"<>": "\\ \u2028 \x05 & 😀\n"}),
    # The reference's order of two keys is a matter of chance: it wrote this file until they were sorted, as ours always are.
    saved("two keys of metadata", {"w": raw(torch.bfloat16, 4)}, {"zone": "1", "format": "pt"}, keys_sorted),
    saved("one NVFP4 expert", {
        "model.layers.1.mlp.experts.0.up_proj.weight_packed": raw(torch.uint8, 8, 16),
        "model.layers.1.mlp.experts.0.up_proj.weight_scale": raw(torch.float8_e4m3fn, 8, 2),
        "model.layers.1.mlp.experts.0.up_proj.weight_global_scale": raw(torch.float32, 1),
        "model.layers.1.mlp.experts.0.up_proj.input_global_scale": raw(torch.float32, 1),
        "model.layers.1.mlp.gate.weight": raw(torch.bfloat16, 4, 8),
        "model.layers.1.mlp.gate.e_score_correction_bias": raw(torch.float32, 4)}, {"format": "pt"}),
]
for pad in range(8):
    cases.append(saved(f"header of any length modulo 8: {pad}", {"n" * (pad + 1): raw(torch.uint8, 3)}))

OUT.parent.mkdir(exist_ok=True)
OUT.write_text(json.dumps({"safetensors": safetensors.__version__, "torch": torch.__version__, "cases": cases}, indent=1, ensure_ascii=True) + "\n")
print(len(cases), "cases,", OUT.stat().st_size, "bytes")
