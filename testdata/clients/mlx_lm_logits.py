"""mlx-lm's own Laguna model on the CPU, with the experts decoded by mlx's own NVFP4 dequantization.

usage: mlx_lm_logits.py CHECKPOINT GOLDEN.f32 GENERATION.json

mlx-lm's loader does not know the compressed-tensors names, so the tensors are read and decoded here; what they are for, and that none
is missing or too many, stays with the model (sanitize and the strict load_weights).
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy
from check import compare_logits
from mlx_lm.models.laguna import Model, ModelArgs

mx.set_default_device(mx.cpu)
NOT_FOR_MLX = (".weight_scale", ".weight_global_scale", ".input_global_scale", ".k_scale", ".v_scale")


def decode(packed, scale, global_scale):
    # A code times its group scale has at most six significant bits: exact in mlx's BF16. The division is then float32.
    scaled = mx.dequantize(packed.view(mx.uint32), scale.view(mx.uint8), group_size=16, bits=4, mode="nvfp4")
    return scaled.astype(mx.float32) / global_scale


def dense(stored):
    out = {}
    for name, tensor in stored.items():
        module, kind = name.rsplit(".", 1)
        if kind == "weight_packed":
            out[module + ".weight"] = decode(tensor, stored[module + ".weight_scale"], stored[module + ".weight_global_scale"])
        elif not name.endswith(NOT_FOR_MLX):
            out[name] = tensor
    return out


checkpoint, golden, generation = sys.argv[1:]
stored = {}
for shard in Path(checkpoint).glob("*.safetensors"):
    stored.update(mx.load(str(shard)))
packed = sum(name.endswith(".weight_packed") for name in stored)

model = Model(ModelArgs.from_dict(json.loads((Path(checkpoint) / "config.json").read_text())))
model.load_weights(list(model.sanitize(dense(stored)).items()), strict=True)
model.set_dtype(mx.float32)
model.eval()
compare_logits(lambda ids: numpy.array(model(mx.array([ids]))[0, -1]), golden, generation, f"{packed} modules decoded" if packed else "")
