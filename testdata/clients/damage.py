"""Damages one checkpoint in one place, for the controls of run.sh --self-test. Needs Python alone.

usage: damage.py flip CHECKPOINT TENSOR       flip the lowest bit of the middle byte of a tensor
       damage.py truncate CHECKPOINT TENSOR   cut the last byte off the shard that holds it
       damage.py unlist CHECKPOINT TENSOR     take its name out of the index
"""

import json
import sys
from pathlib import Path

how, folder, tensor = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
index_path = folder / "model.safetensors.index.json"
index = json.loads(index_path.read_text())
shard = folder / index["weight_map"][tensor]

if how == "unlist":
    del index["weight_map"][tensor]
    index_path.write_text(json.dumps(index))
elif how == "truncate":
    with open(shard, "r+b") as f:
        f.truncate(shard.stat().st_size - 1)
elif how == "flip":
    with open(shard, "r+b") as f:
        header_size = int.from_bytes(f.read(8), "little")
        begin, end = json.loads(f.read(header_size))[tensor]["data_offsets"]
        at = 8 + header_size + (begin + end) // 2
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
else:
    sys.exit(f"damage.py: unknown damage {how}")
