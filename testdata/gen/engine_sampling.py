"""Writes engine/testdata/sampling.json: what transformers' own logits processors leave of a distribution.

    python engine_sampling.py OUT.json        (transformers 5.17.0, torch 2.11, CPU)

The list of processors is the one that GenerationMixin builds, so that their order is transformers' own.
"""
import json
import sys

import torch
import transformers
from transformers import GenerationConfig, PretrainedConfig
from transformers.generation.utils import GenerationMixin


class Bare(GenerationMixin):
    """The mixin without a model: building the list of processors asks its config one thing."""

    config = PretrainedConfig(is_encoder_decoder=False)


CASES = [
    dict(temperature=1.0),
    dict(temperature=0.7),
    dict(temperature=1.0, top_k=20),
    dict(temperature=0.7, top_k=1),
    dict(temperature=1.5, top_k=5),
    dict(temperature=1.0, top_p=0.95),
    dict(temperature=0.6, top_p=0.5),
    dict(temperature=2.0, top_p=0.01),
    dict(temperature=1.0, min_p=0.02),
    dict(temperature=1.3, min_p=0.3),
    dict(temperature=1.0, min_p=1.0),
    dict(temperature=0.7, top_k=20, top_p=0.95),
    dict(temperature=0.7, top_k=40, top_p=0.8, min_p=0.05),
    dict(temperature=1.0, repetition_penalty=1.15),
    dict(temperature=0.9, repetition_penalty=0.8, top_k=10, top_p=0.9, min_p=0.02),
]


def processors(options):
    config = GenerationConfig(do_sample=True, **{"top_k": 0, "top_p": 1.0, "min_p": None, **options})
    return Bare()._get_logits_processor(generation_config=config, device="cpu", input_ids_seq_length=1)


def main(out):
    torch.manual_seed(7)
    made = []
    for n, spread in ((50, 1.0), (300, 3.0), (64, 0.05)):
        logits = torch.randn(n) * spread
        logits[n // 2] = logits[n // 3]  # a tie
        history = torch.randint(0, n, (n // 5,))
        for options in CASES:
            scores = processors(options)(history[None], logits[None].clone())[0]
            p = torch.softmax(scores, -1)
            kept = [i for i in range(n) if scores[i] > -float("inf")]
            made.append(dict(
                logits=logits.tolist(), history=history.tolist(), options=options,
                kept=kept, p=[p[i].item() for i in kept],
            ))
    names = [type(x).__name__ for x in processors(dict(CASES[-1]))]
    doc = dict(transformers=transformers.__version__, torch=torch.__version__, order=names, cases=made)
    with open(out, "w") as f:
        json.dump(doc, f)
        f.write("\n")
    print(names)


main(sys.argv[1])
