"""Times llm-compressor's model_free_ptq on the checkpoint that `lagquant bench --only requantize --keep` leaves.

usage: python model_free_ptq.py SOURCE OUT WORKERS

Needs llmcompressor (measured: 0.14.0.1 with compressed-tensors 0.19.0 and torch 2.14.0), which has no W4A4 without calibration data: the scheme is
NVFP4A16, for the same experts. Only the call is timed, not the half minute before it in which Python loads.
"""

import sys
import time

from llmcompressor import model_free_ptq

source, out, workers = sys.argv[1:]
began = time.perf_counter()
model_free_ptq(
    model_stub=source,
    save_directory=out,
    scheme="NVFP4A16",
    ignore=[r"re:.*(embed_tokens|lm_head|self_attn|shared_expert|mlp\.gate|layers\.0\.mlp).*"],
    max_workers=int(workers),
    device="cpu",
)
print(f"{time.perf_counter() - began:.2f} s")
