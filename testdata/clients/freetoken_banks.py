"""FreeToken's expert reader and its native NVFP4 packing, on a CPU.

usage: freetoken_banks.py CHECKPOINT [BANKS.json]

FreeToken serves other families than Laguna; a family is a source specification (the name pattern below), which is its public way to
say where experts stand. The reader refuses a checkpoint in which any expert of any layer lacks a tensor. With BANKS.json the SHA-256
of each bank of each layer, experts in order, must be the one written there.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from check import finish
from freetoken.layers.quantization.moe.nvfp4 import TritonNvfp4MoEKernel
from freetoken.models.nvfp4_banks import Nvfp4ExpertSourceSpec, iter_nvfp4_expert_pieces

PROJECTIONS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}

checkpoint = sys.argv[1]
config = json.loads((Path(checkpoint) / "config.json").read_text())
moe_layers = [layer for layer, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"]
source = Nvfp4ExpertSourceSpec(
    key_pattern=re.compile(
        r"^model\.layers\.(?P<layer>\d+)\.mlp\.experts\.(?P<expert>\d+)\."
        rf"(?P<proj>{'|'.join(PROJECTIONS)})\.(?P<kind>weight_packed|weight_scale|weight_global_scale)$"
    ),
    proj_to_role=PROJECTIONS,
    layer_to_bank=lambda layer, _: moe_layers.index(layer) if layer in moe_layers else None,
    desc="Laguna experts",
    kind_map={"weight_packed": "weight", "weight_global_scale": "weight_scale_2"},
    global_reciprocal=True,
)
sizes = SimpleNamespace(num_layers=config["num_hidden_layers"], num_moe_layers=len(moe_layers), num_experts=config["num_experts"])
shape = SimpleNamespace(intermediate=config["moe_intermediate_size"], hidden=config["hidden_size"])
kernel = object.__new__(TritonNvfp4MoEKernel)  # its constructor looks for a GPU, its packing needs none
layout = kernel.layout(shape)

experts, projections = {}, 0
try:
    for bank, first, end, pieces in iter_nvfp4_expert_pieces(checkpoint, sizes, source, primary=False):
        out = {name: torch.empty((end - first, *spec.shape), dtype=spec.dtype) for name, spec in layout.items()}
        kernel.pack(pieces, shape, out)
        projections += (end - first) * sum(role in pieces for role in PROJECTIONS.values())
        for row in range(end - first):
            experts[bank, first + row] = {name: rows[row].view(torch.uint8).numpy().tobytes() for name, rows in out.items()}
except (ValueError, KeyError) as refused:
    finish(False, f"refused: {refused}")

expected_experts = len(moe_layers) * config["num_experts"]
good = len(experts) == expected_experts and projections == 3 * expected_experts
figure = f"{len(experts)} experts, {projections} projections accepted"
if len(sys.argv) > 2:
    expected = json.loads(Path(sys.argv[2]).read_text())
    found = {
        f"layer{layer}.{name}": hashlib.sha256(b"".join(experts[bank, e][name] for e in range(config["num_experts"]))).hexdigest()
        for bank, layer in enumerate(moe_layers)
        for name in layout
    }
    different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    good &= not different
    figure += f", {len(expected) - len(different)} of {len(expected)} banks equal" + (f", not {different[0]}" if different else "")
finish(good, figure)
