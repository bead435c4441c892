#!/usr/bin/env python3
"""Writes the fixtures of test/data/tokenizer_*_test.cpp other than the Qwen3 oracle: needs `pip install
tokenizers==0.23.3`.

usage: script/make_tokenizer_fixtures.py

test/data/tokenizer/cases/variants.json.gz: small tokenizers, each of which uses another part of tokenizer.json, with the
package's ids. test/data/tokenizer/cases/sentencepiece.json.gz: the same for tokenizers made from SentencePiece models, with
special tokens and decoded texts. test/data/tokenizer/cases/corpora.json: whole files, with the FNV-1a hash of their Qwen3 ids.
"""
import copy
import gzip
import json
import os
import random

from tokenizers import Tokenizer

ROOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "test/data/tokenizer")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WORDS = {**BYTES, "use_regex": True}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(number, content, **flags):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **flags}


def base_tokenizer(qwen3):
    """A tokenizer with all bytes and the first merges of Qwen3."""
    merges = qwen3["model"]["merges"][:500]
    tokens = [t for t, i in sorted(qwen3["model"]["vocab"].items(), key=lambda x: x[1]) if i < 256]
    tokens += [a + b for a, b in merges]
    small = {k: v for k, v in qwen3.items() if k != "model"}
    small["added_tokens"] = [added(len(tokens), "<|endoftext|>", special=True)]
    small["model"] = {**qwen3["model"], "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
    return small


def unknown_tokenizer(base, missing=(), **model):
    """A tokenizer with few bytes in its vocabulary, so that unk_token and byte_fallback matter."""
    names = list("abcdefghijklmnopqrstuvwxyz") + ["<unk>", "th", "he", "the", "in", "er", "\u0120"]
    names += [f"<0x{b:02X}>" for b in range(256) if b not in missing]
    merges = [["t", "h"], ["h", "e"], ["th", "e"], ["i", "n"], ["e", "r"]]
    fixed = {"unk_token": None, "fuse_unk": False, "byte_fallback": False}
    return {**base, "added_tokens": [], "pre_tokenizer": WORDS,
            "model": {**base["model"], **fixed, "vocab": {t: i for i, t in enumerate(names)}, "merges": merges, **model}}


def variants(base):
    pre = lambda *steps: {**base, "pre_tokenizer": sequence(*steps)}
    n = len(base["model"]["vocab"])
    yield "GPT-2", {**base, "pre_tokenizer": WORDS, "normalizer": None}
    yield "Llama 3", pre(split(LLAMA3), BYTES)
    yield "cl100k, removing what is not matched", pre(split(CL100K, "Removed", True), BYTES)
    yield "prefix space", {**base, "pre_tokenizer": {**WORDS, "add_prefix_space": True}}
    yield "prefix space after a split", pre(split("[0-9]+"), {**BYTES, "add_prefix_space": True})
    yield "single digits", pre({"type": "Digits", "individual_digits": True}, WORDS)
    yield "runs of digits", pre({"type": "Digits", "individual_digits": False}, WORDS)
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"{behavior}{', inverted' if invert else ''}", pre(split("[ a-e]", behavior, invert), BYTES)
    yield "a literal", pre(split("e ", "MergedWithPrevious", kind="String"), BYTES)
    yield "a pattern that matches nothing at all", pre(split("a*"), BYTES)
    yield "stripping added tokens", {**base, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        "added_tokens": [added(n, "<l>", lstrip=True), added(n + 1, "<r>", rstrip=True),
                         added(n + 2, "<lr>", lstrip=True, rstrip=True), added(n + 3, "caf\u00e9", normalized=True),
                         added(n + 4, "e\u0301", normalized=True), added(n + 5, "<l", special=True)]}
    words = copy.deepcopy(base)
    words["model"]["vocab"].update({"hello": n, "\u0120world": n + 1})
    words["added_tokens"] = [added(n + 2, "<|endoftext|>", special=True)]
    yield "tokens that no merge makes", words
    words = copy.deepcopy(words)
    words["model"]["ignore_merges"] = True
    yield "ignore_merges", words
    yield "unknown bytes vanish", unknown_tokenizer(base)
    yield "unk_token", unknown_tokenizer(base, unk_token="<unk>")
    yield "fuse_unk", unknown_tokenizer(base, unk_token="<unk>", fuse_unk=True)
    yield "byte_fallback", unknown_tokenizer(base, byte_fallback=True)
    yield "byte_fallback for some bytes", unknown_tokenizer(
        base, missing=(0xC3, 0xC4), byte_fallback=True, unk_token="<unk>", fuse_unk=True)


SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
TO_TEXT = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
TEXT, BOS, EOS = ({"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}},
                  {"SpecialToken": {"id": "</s>", "type_id": 0}})


def metaspace(scheme, split=False):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def template(*pieces):
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [TEXT, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                               "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}


def sentencepiece_base(qwen3):
    """A tokenizer like that of Llama 2, with the first merges of Qwen3 that are text."""
    plain = lambda token: token.replace("\u0120", SPACE).replace("\u010a", "\n")
    merges = [[plain(a), plain(b)] for a, b in qwen3["model"]["merges"][:600] if (a + b).replace("\u0120", "").isascii()]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    names += sorted({c for a, b in merges for c in a + b} | set("\u00e9\u4f60\U0001f600"))
    names += list(dict.fromkeys(a + b for a, b in merges if a + b not in names))
    flags = {"special": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(0, "<unk>", **flags), added(1, "<s>", **flags), added(2, "</s>", **flags)],
            "normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, "pre_tokenizer": None,
            "post_processor": template(BOS, TEXT), "decoder": {"type": "Sequence", "decoders": [*TO_TEXT, STRIP]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(names)}, "merges": merges}}


def sentencepiece_variants(base):
    n = len(base["model"]["vocab"])
    space_first = {**base, "normalizer": None, "pre_tokenizer": metaspace("first")}
    gemma = {**base, "normalizer": REPLACE, "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"),
             "decoder": {"type": "Sequence", "decoders": TO_TEXT}}
    model = lambda **changes: {"model": {**base["model"], **changes}}
    crossing = copy.deepcopy(base["model"])
    crossing["vocab"].update({"e" + SPACE: n, "e" + SPACE + "t": n + 1})
    crossing["merges"] = [["e", SPACE], ["e" + SPACE, "t"]] + crossing["merges"]
    yield "Llama 2", base
    yield "Mistral 0.3", space_first
    yield "Metaspace before each text", {**space_first, "pre_tokenizer": metaspace("always")}
    yield "Metaspace that splits", {**space_first, "pre_tokenizer": metaspace("first", split=True)}
    yield "Metaspace that adds nothing", {**space_first, "pre_tokenizer": metaspace("never")}
    yield "Gemma", gemma
    known = base["model"]["vocab"]
    yield "Gemma's added tokens", {**gemma, "added_tokens": base["added_tokens"] + [
        added(known.get("\n\n", n), "\n\n"), added(known[SPACE * 2], SPACE * 2), added(n + 1, "<l>", lstrip=True),
        added(n + 2, "<r>", normalized=True)]}
    yield "added tokens after normalization", {**base, "added_tokens": [
        added(0, "<unk>", special=True, normalized=True), added(1, "<s>", special=True, normalized=True),
        added(2, "</s>", special=True, normalized=True)]}
    yield "merges across words", {**base, "model": crossing}
    yield "ignore_merges", {**base, **model(ignore_merges=True)}
    yield "without byte_fallback", {**base, **model(byte_fallback=False)}
    yield "without byte_fallback, fusing nothing", {**base, **model(byte_fallback=False, fuse_unk=False)}
    yield "without unk_token", {**base, **model(byte_fallback=False, unk_token=None)}
    yield "eos and two steps", {**base, "post_processor": {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, template(BOS, TEXT, EOS)]}}
    yield "RoBERTa's", {**base, "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1],
                                                   "trim_offsets": True, "add_prefix_space": True}}
    yield "nothing around", {**base, "post_processor": None}


def sentencepiece_rows(qwen3, cases):
    base = sentencepiece_base(qwen3)
    rows = []
    for name, spec in sentencepiece_variants(base):
        tokenizer, rng = Tokenizer.from_str(json.dumps(spec)), random.Random(2)
        plain = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        chosen = [t.replace("<|endoftext|>", "</s>") for t in texts(rng, cases)]
        chosen += ["", " ", "  ", SPACE, "a" + SPACE + "b", "<s>", "<s> a", "a</s> b </s>  c", "<0x41>", "e the", "e  the"]
        size = len(base["model"]["vocab"])
        lists = [[rng.randrange(size) for _ in range(rng.randrange(12))] for _ in range(60)]
        if "after normalization" in name:  # the package neither skips such special tokens, nor decodes them to their content
            lists = [[i for i in ids if i > 2] for ids in lists]
        lists += [[3 + b for b in text.encode()] for text in ("\u00e9", "\u4f60a", "\U0001f600")] + [[3 + 0xE4, 3 + 0xBD, 300]]
        decode = lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip)
        rows.append({"name": name, "patch": {k: v for k, v in spec.items() if base[k] != v},
                     "cases": [[text, plain(text), tokenizer.encode(text).ids] for text in chosen],
                     "decoded": [[ids, decode(ids, False), decode(ids, True)] for ids in lists]})
    return {"base": base, "variants": rows}


def texts(rng, cases):
    chosen = [t for t in cases if len(t) < 200][::6] + ["hello world", " hello hello  world", "ΑΒΓ hello\n12345 678"]
    spices = ["<l>", "<r>", "<lr>", "<l", " ", "\u3000", "\n", "cafe\u0301", "e\u0301", "<|endoftext|>", "42", "the "]
    for text in chosen:
        yield text
        yield "".join(c + rng.choice(spices) * (rng.random() < 0.4) for c in text[:40])


def fnv1a(ids):
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def main():
    raw = gzip.open(f"{ROOT}/qwen3/tokenizer.json.gz").read().decode()
    cases = [json.loads(line)["text"] for line in gzip.open(f"{ROOT}/cases/encode.jsonl.gz")]
    base = base_tokenizer(json.loads(raw))
    rows = []
    for name, spec in variants(base):
        tokenizer, rng = Tokenizer.from_str(json.dumps(spec)), random.Random(1)
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        rows.append({"name": name, "patch": {k: v for k, v in spec.items() if base[k] != v},
                     "cases": [[text, encode(text)] for text in texts(rng, cases)]})
    with open(f"{ROOT}/cases/variants.json.gz", "wb") as f:
        f.write(gzip.compress(json.dumps({"base": base, "variants": rows}).encode(), 9, mtime=0))

    with open(f"{ROOT}/cases/sentencepiece.json.gz", "wb") as f:
        f.write(gzip.compress(json.dumps(sentencepiece_rows(json.loads(raw), cases)).encode(), 9, mtime=0))

    qwen3 = Tokenizer.from_str(raw)
    corpora = []
    for name in ("blns.txt", "instruction-data.json"):
        ids = qwen3.encode(gzip.open(f"{ROOT}/cases/{name}.gz").read().decode(), add_special_tokens=False).ids
        corpora.append({"file": name + ".gz", "tokens": len(ids), "fnv1a": fnv1a(ids)})
    with open(f"{ROOT}/cases/corpora.json", "w", encoding="ascii") as f:
        json.dump(corpora, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
