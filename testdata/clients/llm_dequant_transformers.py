"""llm-dequant makes a dense float32 copy, transformers (CPU, eager, float32) runs it; a checkpoint without NVFP4 is run as it is.

usage: llm_dequant_transformers.py CHECKPOINT GOLDEN.f32 GENERATION.json

llm-dequant's own round trip (unpack, dequantize, pack again) must give the stored bytes of every module. No weight may be missing,
unexpected or of another shape; the KV cache scales, which belong to serving and which transformers has no place for, are let through.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from check import compare_logits, finish
from llm_dequant.model import convert, verify
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


def silent(_):
    pass


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(n for n in map(str, info[problem]) if not n.endswith((".k_scale", ".v_scale")))
        if names:
            finish(False, f"{len(names)} {problem.replace('_', ' ')}, first: {names[0]}")
    return model.eval()


checkpoint, golden, generation = sys.argv[1:]
note = ""
with tempfile.TemporaryDirectory() as dense:
    if "quantization_config" in json.loads((Path(checkpoint) / "config.json").read_text()):
        trip = verify(checkpoint, sample=sys.maxsize, log=silent)
        equal = trip["sampled"] - len(trip["failures"])
        note = f"{equal} of {trip['sampled']} modules pack again to the stored bytes"
        if trip["failures"]:
            finish(False, note)
        convert(checkpoint, dense, dtype="fp32", log=silent)
        checkpoint = dense
    model = load(checkpoint)

with torch.no_grad():
    compare_logits(lambda ids: model(torch.tensor([ids])).logits[0, -1].numpy(), golden, generation, note)
