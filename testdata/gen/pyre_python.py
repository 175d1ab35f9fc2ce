"""Writes internal/pyre/testdata/python.json: what Python's own re.match says about patterns and texts.

Run with Python 3.11 or newer from the root of the repository: python testdata/gen/pyre_python.py
"""
import json
import re
import warnings

warnings.simplefilter("ignore")

NAMES = [
    "", "a", "lm_head", "model.lm_head", "lm_head\n", "lm_head.x", "mtp.0", "model.embed_tokens",
    "model.layers.4.mlp.gate", "model.layers.4.mlp.gate_proj", "model.layers.40.mlp.gate_proj",
    "model.layers.4.mlp.experts.0.gate_proj", "model.layers.40.mlp.experts.255.up_proj", "model.layers.47.mlp.experts.7.down_proj",
    "model.layers.40.mlp.experts", "model.layers.1.mlp.experts.e_score_correction_bias", "model.layers.1.mlp.shared_expert.down_proj",
    "model.layers.12.self_attn.q_proj", "model.layers.12.self_attn.q_proj.weight", "MODEL.LAYERS.1.SELF_ATTN.Q_PROJ",
    "language_model.model.layers.3.block_sparse_moe.experts.1.w2", "aab", "aaa", "abab", "a]b", "a-b", "[:alpha:]", "x{,3}", "a{1", "tab\tx",
    "é", "aé1", "ſ", "K", "line\nnext", "a.b", "a b", "\\", "b", "ab", "aaaa", "A", "x#y",
]
PATTERNS = [
    r"lm_head", r"lm_head$", r"lm_head\Z", r".*lm_head", r"^lm_head", r".*experts", r".*experts\.[0-9]+\.(gate_proj|up_proj|down_proj)$",
    r"^model\.layers\.4[0-7]\.mlp\.experts(\..*)?$", r"model\.layers\.4", r"model\.layers\.4\.", r".*\.self_attn\.q_proj$", r".*mlp\.gate$",
    r"(?!.*experts).*mlp.*", r".*mlp\.(?!experts)", r"(?=.*gate).*proj", r".*(?<=gate)_proj", r".*(?<!gate)_proj$", r"^(?!model\.layers\.(?:1|4)\.).*",
    r"(?:(?!self_attn).)*$", r"(a)\1", r"(?P<x>a+)b", r"(?P<x>ab)(?P=x)", r"(ab)\1", r"(?P<n>a)(b)\2\1?", r"(?i)model\.layers", r"(?i:MODEL)\.layers",
    r"(?is)model", r"(?i)(?s)model", r"(?u)lm", r"(?s:.)*x", r"line.next", r"(?s)line.next", r"(?m)line$", r"line$", r"\w+$", r"\s", r"\d*a",
    r"[\w.]+$", r"[^\d.]+$", r"[]a]+b", r"[^]a]+", r"[[:alpha:]]+", r"[a-z-[b]]+", r"[a\-b]+$", r"[\]a]+", r"[a&&b]+$", r"[.]", r"a[.]b",
    r"x{,3}", r"a{,2}$", r"a{2}$", r"a{2,}$", r"a{1", r"a{}", r"x\{", r"a{,}b", r"a+?b", r"a*?$", r"a++b", r"a*+a", r"(?>a+)a", r"a?+a",
    r"(?#comment)a", r"a\ b", r"\x61", r"\u0061b", r"\U00000061b", r"\141", r"\0", r"[\b]", r"a\.b", r"\-", r"a\-b", r"\_", r"lm\_head", r"x\#y", r"\\",
    r"é", r"(?i)É", r"(?i)s$", r"(?i)k$", r"", r"|a", r"a|b", r"(a|b)*$", r"a||b", r".*\bq_proj\b", r"\Blm", r"\t", r"tab\tx", r"model.*proj", r"x#y",
    r"model\.layers\.(?:[1-9]|[1-3][0-9])\.", r".*layers\.(0|1|2|3)\.", r".+_proj", r"(?:.*\.)?(?:gate|up)_proj$", r"(model|language_model)\.",
    # refused by Python
    r"(", r")", r"a)", r"[", r"[]", r"*", r"+a", r"a**", r"a{2}{3}", r"a+?+", r"\p{L}", r"\Qa\E", r"\pL", r"(?<n>a)", r"(?P<1>a)", r"(?P=x)", r"\1", r"\q",
    r"[\A]", r"[z-a]", "\\", r"\x4", r"\u12", r"(?z)", r"a(?i)b", r"(?-i)a", r"(?P>x)", r"(?'n'a)", r"(?", r"(?P<n", r"[a\\", r"{,3}", r"\8", r"(?#",
    r"(?P<x>a)(?P<x>b)", r"(?<=a*)b", r"a{3,2}", r"^*", r"a$+", r"\A?b", r"\b{2}", r"a\Z*", r"a|^*", r"(^)*", r"(?=a)*a", r"(?:^|b)+a",
    r"\1(a)", r"(a\1)", r"(a)(\2b)", r"(a)\2(b)", r"(?P<x>a(?P=x))", r"(?P=x)(?P<x>a)", r"(?:a)\1", r"((a)\2)\1", r"(?P<x>a)\1", r"(?P<x>(?P<y>a)(?P=y))",
]


def row(pattern):
    try:
        compiled = re.compile(pattern)
    except re.error as e:
        return {"pattern": pattern, "error": str(e)}
    return {"pattern": pattern, "matches": [i for i, name in enumerate(NAMES) if compiled.match(name)]}


rows = ",\n".join(json.dumps(row(p)) for p in PATTERNS)
with open("internal/pyre/testdata/python.json", "w") as f:
    f.write('{"names": ' + json.dumps(NAMES) + ',\n"rows": [\n' + rows + "\n]}\n")
