"""Makes goldens/families: small models of three families, as real tools quantize them whole and with the experts of the last layer left out.

usage: python families.py OUT [model_free_ptq] [oneshot] [modelopt]

Writes below OUT/families, for each MODEL of qwen3-moe, deepseek-v3 and mixtral (random weights, seed 1):

    MODEL/bf16                 transformers' save_pretrained
    MODEL/model_free_ptq/full  llm-compressor's model_free_ptq, scheme NVFP4A16, routed experts only
    MODEL/oneshot/full         llm-compressor's oneshot, scheme NVFP4 (W4A4), routed experts only
    MODEL/modelopt/full        ModelOpt's quantize (NVFP4_DEFAULT_CFG, attention left out) and export_hf_checkpoint
    MODEL/TOOL/half            the same with the routed experts of layer 2 left out

Measured with transformers 5.17.0, llmcompressor 0.14.0.1, compressed-tensors 0.19.0, nvidia-modelopt 0.47.0 and torch 2.14.0, on a CPU.
Then: tar --sort=name --owner=0 --group=0 --mtime=2026-12-01 -C OUT -cf - families | zstd -19 -o goldens/families.tar.zst
"""

import copy
import os
import sys

import torch
import transformers as hf

out = os.path.join(sys.argv[1], "families")
tools = sys.argv[2:] or ["model_free_ptq", "oneshot", "modelopt"]
vocabulary = 32

common = dict(
    vocab_size=vocabulary, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
    num_experts_per_tok=1, dtype="bfloat16",
)
models = {
    "qwen3-moe": lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(
        **common, head_dim=16, intermediate_size=32, moe_intermediate_size=32, num_experts=3)),
    "deepseek-v3": lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(
        **common, intermediate_size=32, moe_intermediate_size=32, n_routed_experts=3, n_shared_experts=1, first_k_dense_replace=1, n_group=1,
        topk_group=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**common, head_dim=16, intermediate_size=32, num_local_experts=3)),
}

ignore = ["re:.*(embed_tokens|lm_head|self_attn|shared_experts).*", r"re:.*\.gate$", r"re:.*layers\.0\.mlp\.(gate|up|down)_proj$"]
ignore_half = ignore + [r"re:.*layers\.2\..*\.experts\..*"]


def calibration():
    torch.manual_seed(2)
    return torch.randint(0, vocabulary, (8, 64))


def model_free_ptq(source, target, half):
    from llmcompressor import model_free_ptq

    rules = ignore_half if half else ignore
    model_free_ptq(model_stub=source, save_directory=target, scheme="NVFP4A16", ignore=rules, max_workers=1, device="cpu")


def oneshot(source, target, half):
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from tokenizers import Tokenizer, models as kinds

    model = hf.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    words = Tokenizer(kinds.WordLevel({str(i): i for i in range(vocabulary)}, unk_token="0"))
    ids = calibration().tolist()
    oneshot(
        model=model, processor=hf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0"), output_dir=target,
        dataset=Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(i) for i in ids]}), max_seq_length=64, num_calibration_samples=len(ids),
        recipe=QuantizationModifier(targets="Linear", scheme="NVFP4", ignore=ignore_half if half else ignore),
    )
    for name in "tokenizer.json", "tokenizer_config.json":
        os.remove(os.path.join(target, name))


def modelopt(source, target, half):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model = hf.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    for pattern in ["*self_attn*"] + (["*layers.2.mlp.experts.*"] if half else []):
        config["quant_cfg"].append({"quantizer_name": pattern, "enable": False})
    ids = calibration()
    model = mtq.quantize(model, config, lambda m: m(ids))
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=target)


for name, make in models.items():
    base = os.path.join(out, name, "bf16")
    if not os.path.exists(base):
        torch.manual_seed(1)
        # model_free_ptq finds w1 and w3 of Mixtral only where names come in their natural order, as in one file
        make().to(torch.bfloat16).save_pretrained(base, max_shard_size="1GB" if name == "mixtral" else "40KB")
    for tool in tools:
        for kind in "full", "half":
            {"model_free_ptq": model_free_ptq, "oneshot": oneshot, "modelopt": modelopt}[tool](base, os.path.join(out, name, tool, kind), kind == "half")
