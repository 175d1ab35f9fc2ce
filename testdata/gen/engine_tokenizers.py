"""Writes engine/testdata/tokenizers.json.gz: variations of the tiny tokenizer and the ids that Hugging Face's tokenizers gives for them.

    python engine_tokenizers.py TINY/tokenizer.json OUT.json.gz        (tokenizers 0.23.3)

Each variation replaces parts of the file; its texts are encoded with and without special tokens and decoded back both ways.
"""
import gzip
import json
import random
import sys

import tokenizers
from tokenizers import Tokenizer

ISOLATED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def pre(*steps):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, BYTES]}}


def added(**flags):
    base = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return [
        {"id": 2048, "content": "<tag>", **base, **flags},
        {"id": 2049, "content": "<tag>x", **base, **flags},
        {"id": 2050, "content": "cafe\u0301", **base, **flags},
        {"id": 442, "content": "int", **base, **flags},
    ]


def variations():
    digits = {"Regex": r"\p{N}+"}
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"Split {behavior} {invert}", pre(split(digits, behavior, invert))
            yield f"Split single {behavior} {invert}", pre(split({"Regex": r"[\s,]"}, behavior, invert))
        yield f"Split String {behavior}", pre(split({"String": ", "}, behavior))
    yield "Digits individual", pre({"type": "Digits", "individual_digits": True})
    yield "Digits", pre({"type": "Digits", "individual_digits": False})
    yield "ByteLevel alone", {"pre_tokenizer": {**BYTES, "use_regex": True}}
    yield "ByteLevel without use_regex", {"pre_tokenizer": {k: v for k, v in BYTES.items() if k != "use_regex"}}
    yield "ByteLevel add_prefix_space", {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(digits, "Isolated"), {**BYTES, "add_prefix_space": True}]}}
    yield "NFC", {"normalizer": {"type": "NFC"}}
    yield "NFC in a sequence", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}
    for flags in ({}, {"single_word": True}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"special": True}):
        for normalized in (False, True):
            yield f"added {flags} {normalized}", {"normalizer": {"type": "NFC"}, "added_tokens": added(**flags, normalized=normalized)}
    yield "ignore_merges", {"model": {"ignore_merges": True}, "vocab": {"zqzq": 2048, "\u0120zq": 2049}}
    mark = {"SpecialToken": {"id": "X", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"X": {"id": "X", "ids": [8, 9], "tokens": ["\u3008|SEP|\u3009", "\u3008|PAD|\u3009"]}}
    template = {"type": "TemplateProcessing", "single": [mark, text, mark], "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": special}
    yield "template around", {"post_processor": template}
    yield "template in a sequence", {"post_processor": {"type": "Sequence", "processors": [{**BYTES}, template]}}
    yield "no post-processor", {"post_processor": None}


TEXTS = [
    "", " ", "a1b22c333", "12, 34 ,,5", ", a, b, ", "\n\n", "x  1\u00bd2\u2167 \u0661\u0662", "  lead, trail  ",
    "<tag>", "a<tag>b", " <tag> ", "  <tag>x  <tag>", "<tag><tag>x<tag>", "a <tag>\n\tb", "_<tag>", "<tag>_", "\u00e9<tag>", "<tag>\u0301",
    "caf\u00e9", "cafe\u0301", " cafe\u0301s", "e\u0301\u0323 \u1e9b\u0323 \uac00\u1100\u1161", "int", "print", "int int", "(int)", "int_", "zqzq zq zqzqzq",
    "it's IT'S 'LL \u0130's 'K 'd", "tab\tand\u00a0nbsp\u2028line\u0085nel\u200bzw\x1c\x1f", "\x00\x01", "func main() {\n\tfmt.Println(\"hi\")\n}\n",
    "\r\n\r\nx\r\n", "\U0001f642\U0001f469\u200d\U0001f469", "\u3008|EOS|\u3009<think>x</think>", "//////// ======== ........", "aaaa" * 20, "ababab" * 9,
]


def main(source, out):
    base = json.load(open(source))
    rng = random.Random(5)
    alphabet = list(" \n\t,.'\"aebint1\u00e9\u0301<tag>x_\u6f22\U0001f642\r") + ["<tag>", "int", "  ", "cafe\u0301"]
    texts = TEXTS + ["".join(rng.choices(alphabet, k=rng.randint(1, 30))) for _ in range(60)]
    made = []
    for name, change in variations():
        change = {**change}
        doc = json.loads(json.dumps(base))
        doc["added_tokens"] += change.get("added_tokens", [])
        doc["model"]["vocab"].update(change.get("vocab", {}))
        doc["model"].update(change.get("model", {}))
        for key in ("normalizer", "pre_tokenizer", "post_processor"):
            if key in change:
                doc[key] = change[key]
        tok = Tokenizer.from_str(json.dumps(doc))
        cases = []
        for text in texts:
            ids = tok.encode(text, add_special_tokens=False).ids
            special = tok.encode(text, add_special_tokens=True).ids
            cases.append([ids, special, tok.decode(special, skip_special_tokens=True), tok.decode(special, skip_special_tokens=False)])
        made.append({"name": name, "change": change, "cases": cases})
    # Decoding of what no text encodes to: broken characters.
    tok = Tokenizer.from_str(json.dumps(base))
    broken = [[rng.choice([rng.randint(70, 325), rng.randint(200, 325), rng.randint(0, 2047)]) for _ in range(rng.randint(1, 12))] for _ in range(200)]
    decoded = [[ids, tok.decode(ids, skip_special_tokens=False)] for ids in broken]
    doc = {"tokenizers": tokenizers.__version__, "texts": texts, "variations": made, "decoded": decoded}
    with open(out, "wb") as f, gzip.GzipFile("", "wb", fileobj=f, mtime=0) as z:
        z.write(json.dumps(doc, separators=(",", ":")).encode())


main(*sys.argv[1:])
