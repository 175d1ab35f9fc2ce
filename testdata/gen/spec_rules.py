"""Writes spec/testdata/rules.json: which targets match which modules, and which modules are ignored, by compressed-tensors' own matcher; and which file
name patterns, as ModelOpt's configs have them, match by Python's fnmatch.

Run from the root of the repository with compressed-tensors installed (0.14.0.1 and 0.19.0 give the same file; --no-deps is enough, since the matcher needs
of torch only a few classes, which are stood in for): python testdata/gen/spec_rules.py
"""
import fnmatch
import importlib.util
import json
import os
import sys
import types

try:
    import torch
except ImportError:
    torch = types.ModuleType("torch")
    torch.nn = types.ModuleType("torch.nn")
    torch.Tensor, torch.nn.Module, torch.nn.Parameter = (type(name, (), {}) for name in ("Tensor", "Module", "Parameter"))
    sys.modules["torch"], sys.modules["torch.nn"] = torch, torch.nn


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# The two files of the package alone: importing the package would import torch for good.
root = importlib.util.find_spec("compressed_tensors").submodule_search_locations[0]
for package in ("compressed_tensors", "compressed_tensors.utils"):
    sys.modules[package] = types.ModuleType(package)
load("compressed_tensors.utils.internal", os.path.join(root, "utils", "internal.py"))
match = load("compressed_tensors.utils.match", os.path.join(root, "utils", "match.py"))

CLASSES = {name: type(name, (torch.nn.Module,), {}) for name in ("Linear", "Embedding", "LagunaRMSNorm")}
MODULES = [
    ("lm_head", "Linear"), ("model.lm_head", "Linear"), ("lm_head_2", "Linear"), ("Linear", "Linear"), ("model.embed_tokens", "Embedding"),
    ("model.norm", "LagunaRMSNorm"), ("model.layers.4.input_layernorm", "LagunaRMSNorm"), ("mtp.0.mlp.experts.3.up_proj", "Linear"),
    ("language_model.model.layers.4.mlp.experts.0.gate_proj", "Linear"), ("model.layers.4.mlp", "Linear"), ("model.layers.4.mlp.experts", "Linear"),
]
for layer in (0, 4, 40, 44, 47):
    for part in (
        "self_attn.q_proj", "self_attn.g_proj", "mlp.gate", "mlp.gate_proj", "mlp.experts.0.gate_proj", "mlp.experts.10.up_proj", "mlp.experts.7.down_proj",
        "mlp.shared_expert.down_proj",
    ):
        MODULES.append((f"model.layers.{layer}.{part}", "Linear"))

LAGUNA = [
    "lm_head", *[f"re:.*\\.self_attn\\.{p}_proj$" for p in "qkvog"], "re:.*\\.mlp\\.gate$", "model.layers.0.mlp.gate_proj",
    "re:.*\\.mlp\\.shared_expert\\.down_proj$",
]
CASES = [  # targets, ignore
    (["re:.*experts\\.[0-9]+\\.(gate_proj|up_proj|down_proj)$"], LAGUNA),
    (["re:.*experts\\.[0-9]+\\.(gate_proj|up_proj|down_proj)$"], [*LAGUNA, "re:^model\\.layers\\.4[0-7]\\.mlp\\.experts(\\..*)?$"]),
    (["Linear"], ["re:lm_head"]),
    (["Linear"], ["re:.*lm_head"]),
    (["Linear"], ["lm_head", "re:.*experts"]),
    (["Linear"], ["model.layers.4", "re:model.layers.4"]),
    (["Linear"], ["re:model\\.layers\\.4\\."]),
    (["Linear"], ["mlp.gate", "*.mlp.gate", "model.layers.4.mlp.gate*", "gate", ""]),
    (["Linear"], ["re:(?!.*experts).*"]),
    (["Linear"], ["re:.*mlp\\.(?!experts)"]),
    (["Linear"], ["re:.*(?<!gate)_proj$"]),
    (["Linear"], ["Linear"]),
    (["Linear"], ["linear", "Embedding", "re:Linear"]),
    (["re:.*", "Linear"], []),
    (["Embedding", "re:.*embed.*"], []),
    (["model.layers.4.mlp.gate_proj", "re:.*gate_proj$", "Linear"], []),
    (["re:.*gate_proj$", "re:.*mlp.*", "re:.*experts.*", "re:^model"], []),
    (["Linear", "model.layers.40.mlp.gate"], ["re:.*self_attn"]),
    (["re:(?i)MODEL\\.LAYERS\\.4", "LagunaRMSNorm"], []),
    (["re:model.layers.(4|47).mlp.experts.\\d+.[a-z_]+$"], ["re:.*\\.up_proj"]),
    ([], []),
]
GLOBS = [
    "lm_head", "*lm_head", "lm_head*", "*.mlp.gate", "*.mlp.gate*", "model.layers.4*", "model.layers.4.*", "model.layers.?.mlp.gate", "model.layers.4[0-4].*",
    "model.layers.[!4]*", "model.layers.[4.*", "*[]x]*", "*[!]]*", "model.layers.4\\.mlp*", "*+*", "(*)", "", "*", "**gate**", "model.layers.[0-].*", "*[^m]lp*",
]


def row(targets, ignore):
    first, ignored = [], []
    for name, cls in MODULES:
        module = CLASSES[cls]()
        matched = match.match_targets(name, module, targets)
        first.append(targets.index(matched[0]) if matched else -1)
        ignored.append(int(match.is_match(name, module, ignore)))
    return json.dumps({"targets": targets, "ignore": ignore, "first": first, "ignored": ignored})


with open("spec/testdata/rules.json", "w") as f:
    f.write('{"modules": ' + json.dumps(MODULES) + ',\n"cases": [\n' + ",\n".join(row(t, i) for t, i in CASES) + "\n],\n")
    globs = [json.dumps([g, [int(fnmatch.fnmatchcase(name, g)) for name, _ in MODULES]]) for g in GLOBS]
    f.write('"globs": [\n' + ",\n".join(globs) + "\n]}\n")
