#!/usr/bin/env python3
"""Make the 15 generated tensors of nvfp4/generated.json and quantize them with the real compressed-tensors library on a CPU.

usage: reproduce_nvfp4_vectors.py GENERATED.json

GENERATED.json is nvfp4/generated.json of testdata/goldens/goldens.tar.zst; nvfp4/README.md beside it defines the generator. The *-cuda
digests, made on an H200, are reached with the division by 6 replaced as reproduce_tiny_nvfp4.py explains. The modelopt-cpu digests come
from another library and are not made here. Exits 1 when an input or a digest differs.
"""

import hashlib
import importlib.metadata
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from reproduce_tiny_nvfp4 import GROUP, KINDS, DivisionBySixAsOnCUDA, quantize_set, raw

ARGS = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=GROUP, scale_dtype=torch.float8_e4m3fn)
PROFILES = {
    "ct-fp32-cpu": (torch.float32, nullcontext),
    "ct-bf16-cpu": (torch.bfloat16, nullcontext),
    "ct-fp32-cuda": (torch.float32, DivisionBySixAsOnCUDA),
    "ct-bf16-cuda": (torch.bfloat16, DivisionBySixAsOnCUDA),
}


def words(seed, count):
    """The first count outputs of splitmix64."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def bf16_bits(values):
    """float32 to BF16 bits, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def generate(case):
    """The BF16 bits of a case, [rows, cols]."""
    z, plant = words(case["seed"], case["rows"] * case["cols"]), int(case["plant"], 16)
    if case["kind"] == "wide":
        low = z.astype(np.uint16)
        bits = (z >> np.uint64(63)).astype(np.uint16) << 15 | (96 + (z >> np.uint64(8)) % 28).astype(np.uint16) << 7 | low & 0x7F
    else:
        lanes = z.view(np.uint16).reshape(-1, 4).astype(np.int64).sum(1) - 131070
        bits = bf16_bits(lanes * {"gauss": 2.0**-21, "gauss4": 2.0**-19}[case["kind"]])
    if plant:
        bits = np.where(bits & 0x7FFF > plant, bits & 0x8000 | plant, bits).astype(np.uint16)

    groups = bits.reshape(-1, GROUP)
    choice = words(case["seed"] ^ 0xABCDEF, len(groups))
    groups[choice % 97 == 0] = 0
    lowered = (choice % 97 != 0) & (choice % 89 == 1)
    groups[lowered] -= np.where(groups[lowered] >> 7 & 0xFF > 20, 20 << 7, 0).astype(np.uint16)
    if plant:
        bits[0] = plant
    return bits.reshape(case["rows"], case["cols"])


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def main():
    cases = json.loads(Path(sys.argv[1]).read_text())["cases"]
    print("compressed-tensors", importlib.metadata.version("compressed-tensors"), "torch", torch.__version__)
    equal, inputs = dict.fromkeys(PROFILES, 0), 0
    for case in cases:
        bits = generate(case)
        inputs += sha256(bits.tobytes()) == case["input_sha256"]
        weight = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
        for name, (dtype, division) in PROFILES.items():
            with division():
                (stored,) = quantize_set([weight], ARGS, dtype)
            packed, scale, g = (raw(stored[kind]) for kind in KINDS)
            expected = case["profiles"][name]
            equal[name] += (sha256(packed), sha256(scale), g[::-1].hex()) == tuple(
                expected[key] for key in ("packed_sha256", "scale_sha256", "global_bits")
            )
    print(f"inputs: {inputs} of {len(cases)} equal")
    for name, count in equal.items():
        print(f"{name}: {count} of {len(cases)} equal")
    return 0 if {inputs, *equal.values()} == {len(cases)} else 1


if __name__ == "__main__":
    sys.exit(main())
