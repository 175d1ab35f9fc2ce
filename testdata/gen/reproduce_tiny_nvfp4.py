#!/usr/bin/env python3
"""Recompute the NVFP4 experts of the tiny checkpoints from bf16 with the real compressed-tensors library on a CPU, and compare bytes.

usage: reproduce_tiny_nvfp4.py TINY_DIR [EXPECTED_0804.json]

TINY_DIR holds bf16, nvfp4-0722 and nvfp4-0801 (`lagquant demo` writes them). EXPECTED_0804.json is tiny/expected-0804.json of
testdata/goldens/goldens.tar.zst. Works with compressed-tensors 0.14.0.1, which made the files, and with 0.19.0; README.md in the folder
above has the commands and the result. llm-compressor's weight observer is only a minimum and a maximum, so they are taken here; the
global scale, the group scales, the codes and the packing are the library's.

The files were made on CUDA, where the library's division of a group maximum by the number 6 runs as a multiplication by the rounded
reciprocal. A CPU divides truly. So three runs are compared:

    bf16           observers in BF16                        expected: 0722 entirely, since rounding to BF16 hides the difference
    fp32           observers in FP32, the CPU's division    expected: 0801 and 0804 almost, never entirely
    fp32, by 1/6   observers in FP32, division replaced     expected: 0801 and 0804 entirely

Exits 1 when one of these expectations does not hold.
"""

import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors import safe_open
from torch.overrides import TorchFunctionMode

try:
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8  # 0.15 and later
except ImportError:
    from compressed_tensors.compressors.quantized_compressors.fp4_quantized import pack_fp4_to_uint8

torch.compiler.set_stance("force_eager")  # 0.14 compiles its packing, anew for every shape; the same bytes without, and sooner

GROUP = 16
SIXTH = torch.tensor(0x3E2AAAAB, dtype=torch.int32).view(torch.float32)  # 1/6 rounded to float32
KINDS = ("weight_packed", "weight_scale", "weight_global_scale")


class DivisionBySixAsOnCUDA(TorchFunctionMode):
    """Turns tensor / 6 into a float32 multiplication by SIXTH, rounded once to the tensor's dtype. Counts what it replaced."""

    def __init__(self):
        super().__init__()
        self.replaced = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ("__truediv__", "div", "true_divide"):
            divisor = torch.as_tensor(args[1])
            if divisor.ndim == 0 and divisor == 6:
                self.replaced += 1
                return (args[0].float() * SIXTH).to(args[0].dtype)
        return func(*args, **(kwargs or {}))


class Checkpoint:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.shard_of = json.loads((self.folder / "model.safetensors.index.json").read_text())["weight_map"]
        self.shards = {name: safe_open(self.folder / name, "pt") for name in set(self.shard_of.values())}

    def __contains__(self, name):
        return name in self.shard_of

    def tensor(self, name):
        return self.shards[self.shard_of[name]].get_tensor(name)


def quantize_set(weights, args, dtype):
    """The three stored tensors of each member of a set that shares one global scale (gate and up, or down alone)."""
    weights = [w.to(dtype) for w in weights]
    groups = [w.unflatten(-1, (-1, GROUP)) for w in weights]
    g = generate_gparam(torch.stack([w.min() for w in weights]).min(), torch.stack([w.max() for w in weights]).max())
    for w, by_group in zip(weights, groups):
        scale, zero = calculate_qparams(by_group.amin(-1), by_group.amax(-1), args, global_scale=g)
        codes = quantize(x=w, scale=scale.to(dtype), zero_point=zero.to(dtype), args=args, global_scale=g)
        yield dict(zip(KINDS, (pack_fp4_to_uint8(codes), scale.to(torch.float8_e4m3fn), g)))


def requantize(bf16, args, dtype):
    """Every expert projection of bf16, as {tensor name: bytes}."""
    out = {}
    experts = sorted({n.rsplit(".", 2)[0] for n in bf16.shard_of if ".mlp.experts." in n and n.endswith("_proj.weight")})
    for expert in experts:
        for projections in (("gate_proj", "up_proj"), ("down_proj",)):
            modules = [f"{expert}.{p}" for p in projections]
            for module, stored in zip(modules, quantize_set([bf16.tensor(m + ".weight") for m in modules], args, dtype)):
                for kind, tensor in stored.items():
                    out[f"{module}.{kind}"] = raw(tensor)
    return out


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def compare_bytes(made, checkpoint):
    """(modules present, modules equal, {kind: bytes that differ}; for globals: values that differ)."""
    present, unequal, differing = set(), set(), dict.fromkeys(KINDS, 0)
    for name, mine in made.items():
        if name not in checkpoint:
            continue
        module, kind = name.rsplit(".", 1)
        present.add(module)
        theirs = raw(checkpoint.tensor(name))
        if mine != theirs:
            unequal.add(module)
            differing[kind] += 1 if kind == "weight_global_scale" else sum(a != b for a, b in zip(mine, theirs))
    return len(present), len(present) - len(unequal), differing


def compare_digests(made, expected):
    unequal = {n.rsplit(".", 1)[0] for n, b in made.items() if hashlib.sha256(b).hexdigest() != expected[n]["sha256"]}
    modules = len({n.rsplit(".", 1)[0] for n in made})
    return modules, modules - len(unequal)


def main():
    tiny = Path(sys.argv[1])
    expected = json.loads(Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else None
    bf16, vendor = Checkpoint(tiny / "bf16"), {v: Checkpoint(tiny / f"nvfp4-{v}") for v in ("0722", "0801")}
    config = json.loads((tiny / "nvfp4-0801" / "config.json").read_text())
    args = QuantizationArgs(**config["quantization_config"]["config_groups"]["group_0"]["weights"])
    print("compressed-tensors", importlib.metadata.version("compressed-tensors"), "torch", torch.__version__)

    sixth = DivisionBySixAsOnCUDA()
    runs = {"bf16": requantize(bf16, args, torch.bfloat16), "fp32": requantize(bf16, args, torch.float32)}
    with sixth:
        runs["fp32, by 1/6"] = requantize(bf16, args, torch.float32)
    exact = {("bf16", "0722"), ("fp32, by 1/6", "0801"), ("fp32, by 1/6", "0804")}

    good = sixth.replaced > 0
    for run, made in runs.items():
        rows = [(v, *compare_bytes(made, c)) for v, c in vendor.items()]
        if expected:
            rows.append(("0804", *compare_digests(made, expected), None))
        for name, modules, equal, differing in rows:
            good &= (equal == modules) == ((run, name) in exact) and modules > 0
            detail = "" if differing is None else "  differing: packed %d scale bytes %d globals %d" % tuple(differing.values())
            print(f"{run:13} {name}: {equal} of {modules} modules equal{detail}")
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
