"""Every shard through two readers that share no code, safetensors (Rust) and modelvet (C), and the index against the shards.

usage: structure.py CHECKPOINT [DIGESTS.json]

DIGESTS.json maps each tensor name to {"sha256", ...} of its bytes; given, the names and all bytes must agree too.
"""

import hashlib
import json
import sys
from pathlib import Path

import modelvet
import safetensors
from check import finish

folder = Path(sys.argv[1])
complaints, shard_of, digests = [], {}, {}
shards = sorted(folder.glob("*.safetensors"))
for path in shards:
    report = modelvet.verify_path(str(path))
    if not report.accepted:
        complaints.append(f"{path.name}: modelvet {report.violation_name} at byte {report.offset}")
    try:
        tensors = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as refused:
        complaints.append(f"{path.name}: safetensors {refused}")
        continue
    for name, tensor in tensors:
        if name in shard_of:
            complaints.append(f"{name} in {shard_of[name]} and {path.name}")
        shard_of[name] = path.name
        digests[name] = hashlib.sha256(tensor["data"]).hexdigest()

index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
for name in sorted(index.keys() | shard_of.keys()):
    if index.get(name) != shard_of.get(name):
        complaints.append(f"{name}: index says {index.get(name)}, found in {shard_of.get(name)}")

figure = f"{len(shard_of)} tensors in {len(shards)} shards, index agrees"
if len(sys.argv) > 2:
    expected = {name: t["sha256"] for name, t in json.loads(Path(sys.argv[2]).read_text()).items()}
    for name in sorted(expected.keys() | digests.keys()):
        if expected.get(name) != digests.get(name):
            complaints.append(f"{name}: not the expected bytes")
    figure += f", {len(expected)} digests equal"

if not shard_of:
    complaints.append("no tensor found")
if complaints:
    figure = f"complaints: {len(complaints)}, first: {complaints[0]}"
finish(not complaints, figure)
