#!/usr/bin/env python3
"""Writes small.json and shared.json beside itself: what Hugging Face's `tokenizers` makes of texts.

    pip install tokenizers==0.23.3
    python3 make_tokenizer_golden.py [SHARED_DATA]      # a folder with tokenizers/{gpt2,llama3,qwen3} and text/; some minutes

small.json holds tokenizers made here, one for each thing a tokenizer.json can ask for, with texts and their ids. shared.json
holds what tokenizers that are not in the repository make of texts that are not, as checksums: CRC-32 of the ids as 32-bit
little-endian numbers, each text's behind their count. The C++ test makes the same texts by itself.
"""
import json
import os
import random
import struct
import sys
import zlib
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s"
)
DEEPSEEK = [
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
]

# What goes wrong elsewhere: whatever tokenizers trip over, as pieces to be put together.
PARTS = [
    " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028", "\x85", "\x0b", "\u200b", "\ufeff", "\x00",
    "a", "A", "the", "The", "don't", "DON'T", "we'LL", "'s", "'S", "'\u017f", "'", "''", "\u2019s", "I'm", "x's't",
    "0", "12", "123", "1234", "12345678", "\u00b2", "\u0663", "\u216b", "\U00011de0", "3.14", "1,000",
    "\u00e9", "e\u0301", "E\u0301\u0323", "\u1e69", "s\u0323\u0307", "s\u0307\u0323", "\u212b", "\u0344", "\u0958", "\u0301", "\u1100\u1161\u11a8",
    "\uac00\u11a8", "\ud55c\uad6d\uc5b4", "\u65e5\u672c\u8a9e\u3002", "\u4f60\u597d\uff0c\u4e16\u754c", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "\u01c5", "\u02b0", "\u01f0", "\u0130", "\u00df", "\ufb01",
    "...", "!!", "?!", "--", "<", "<|", "|>", "//", "(x)", "[1]", "{}", "_a_", "@b", "#", "$1", "=>", "\\n", "/\n", ".\n", ";\r\n\r\n",
    "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<think>", "</think>", "<|endoftext|", "<tool_call>",
]


def texts_of(seed, count, parts=PARTS):
    choose = random.Random(seed)
    return ["".join(choose.choice(parts) for _ in range(choose.randint(1, 14))) for _ in range(count)]


def checksum(texts, tokenizer, size=4096):
    crc, count = 0, 0
    for begin in range(0, len(texts), size):
        for encoding in tokenizer.encode_batch_fast(texts[begin : begin + size], add_special_tokens=False):
            ids = encoding.ids
            crc = zlib.crc32(struct.pack(f"<{len(ids) + 1}i", len(ids), *ids), crc)
            count += len(ids)
    return [count, crc]


# The C++ test has the same generator.
def random_bytes(seed, size):
    state, out = seed, bytearray()
    for _ in range(size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 56)
    return bytes(out)


CONTEXTS = ["{}", "a{}", "{}a", "1{}", "{}1", " {}", "{} ", "'{}", "\n{}", "{}\n", "a\u0301{}b", "\u0301{}\u0323", "{}{}"]
BLOCK = 4096


def unicode_checksums(tokenizer):
    out = {}
    for context in CONTEXTS:
        sums = []
        for begin in range(0, 0x110000, BLOCK):
            # Of the planes where nothing is assigned every 16th in context: all of them have one category.
            step = 16 if context != "{}" and 0x40000 <= begin < 0xE0000 else 1
            texts = [context.replace("{}", chr(c)) for c in range(begin, begin + BLOCK, step) if not 0xD800 <= c < 0xE000]
            sums.append(checksum(texts, tokenizer)[1])
        out[context] = sums
    return out


def shared_tokenizer(folder, name):
    if name != "gpt2":
        return Tokenizer.from_file(str(folder / name / "tokenizer.json"))
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "gpt2/encoder.json"), str(folder / "gpt2/vocab.bpe")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def make_shared(data):
    out = {"contexts": CONTEXTS, "block": BLOCK, "tokenizers": {}}
    nasty = texts_of(1, 400)
    nasty += ["a" * 5000, " " * 3000 + "x", "\n" * 2000, "1" * 1999, "é" * 1500, "ab" * 2000, "!" * 3000, "", "e" + "\u0301" * 50]
    out["nasty"] = nasty
    for name in ("gpt2", "llama3", "qwen3"):
        tokenizer = shared_tokenizer(data / "tokenizers", name)
        texts = {
            file: checksum([(data / "text" / file).read_bytes().decode()], tokenizer)
            for file in ("wikitext2-valid.txt", "wikitext2-test.txt", "tinyshakespeare.txt", "sentences.jsonl")
        }
        out["tokenizers"][name] = {
            "texts": texts,
            "nasty": [checksum([text], tokenizer)[1] for text in nasty],
            "unicode": unicode_checksums(tokenizer),
            "random_bytes": [
                checksum([random_bytes(seed, 2000).decode("utf-8", "replace")], tokenizer)[1] for seed in range(100)
            ],
        }
        print(name, file=sys.stderr)
    return out


def trained(pre_tokenizer=None, alphabet=True, size=600, texts=None, **options):
    """Merges that reach across everything, so that ids tell where the text was cut."""
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        special_tokens=["<unk>", "<|endoftext|>"],
        show_progress=False,
        max_token_length=12,
    )
    tokenizer.train_from_iterator(texts or texts_of(2, 600), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def small_tokenizers():
    sequence = pre_tokenizers.Sequence
    yield "gpt2 pattern", trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), {}
    yield "gpt2 pattern, prefix space", trained(pre_tokenizers.ByteLevel(add_prefix_space=True)), {}
    yield "llama3 pattern", trained(sequence([split(LLAMA3), BYTES])), {"legacy": True}
    yield "gpt4o pattern", trained(sequence([split(GPT4O), BYTES])), {}
    yield "possessive pattern", trained(sequence([split(POSSESSIVE), BYTES])), {}
    yield "several splits", trained(sequence([split(p) for p in DEEPSEEK if "$" not in p] + [BYTES])), {}
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=True)
    yield "digits, prefix space", trained(sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])), {}
    yield "digits together", trained(sequence([pre_tokenizers.Digits(individual_digits=False), BYTES])), {}
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        yield behavior, trained(sequence([split(r"[\s'e]", behavior), BYTES])), {}
        yield behavior + ", inverted", trained(sequence([split(r"\p{L}+", behavior, True), BYTES])), {}
    yield "a text as pattern", trained(sequence([pre_tokenizers.Split(".", "removed"), BYTES])), {}
    yield "count and group", trained(sequence([split(r"(?:a|b|1){2,3}|[^\P{L}a-c]\S|\u0065\x41?|\.{,2}x(?=\w)".replace(r"(?=\w)", "(?=[a-z])")), BYTES])), {}
    nfc = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    nfc.normalizer = normalizers.Sequence([normalizers.NFC()])
    nfc.add_tokens([AddedToken("e\u0301", normalized=True), AddedToken("\u212b", normalized=False)])
    yield "nfc, added tokens normalised and not", nfc, {}
    spaces = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    spaces.add_tokens([AddedToken("the 12", normalized=True), AddedToken("a the", normalized=False)])
    yield "added tokens with a space", spaces, {"parts": ["the", " 12", " the", "a", " ", "12", " a", "b"]}
    flags = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    flags.add_special_tokens([AddedToken("<|im_start|>", rstrip=True), AddedToken("<|eot_id|>", lstrip=True)])
    flags.add_tokens(
        [
            AddedToken("the", single_word=True, normalized=False),
            AddedToken("<think>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("12", normalized=False),
            AddedToken("123", normalized=False),
            AddedToken("\n", normalized=False),
            AddedToken("x's", single_word=True, normalized=True),
        ]
    )
    flags.post_processor = processors.TemplateProcessing(
        single="<unk> $A <|endoftext|>", special_tokens=[("<unk>", 0), ("<|endoftext|>", 1)]
    )
    yield "flags of added tokens", flags, {"template": True}
    around = [" ", "  ", "\n", " \n ", "\u3000", "a", "_", "!", "\u200d", "\u24b6", "\u00b2", "\u0301", "x's", "the"]
    tokens = ["<|im_start|>", "<|eot_id|>", "<think>", "the", "x's", "12", "123", "<|endoftext|>"]
    yield "flags and what is around them", flags, {"parts": around + tokens}
    few = ["the cat", "don't e e e", "AAA aaa 123"] * 3
    yield "unknown", trained(pre_tokenizers.ByteLevel(add_prefix_space=False), False, 60, few, unk_token="<unk>"), {}
    yield "unknown, fused", trained(pre_tokenizers.ByteLevel(add_prefix_space=False), False, 60, few, unk_token="<unk>", fuse_unk=True), {}
    yield "ignores merges", trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), {"ignore_merges": True}


CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PROPERTIES = [r"\s", r"\d"] + [
    f"\\p{{{name}}}" for name in "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf Co".split()
]
NORMALIZED = ["{}", "a{}", "{}\u0301", "a\u0323{}\u0301", "\u1100{}", "{}\u11a8", "a{}\u0323\u0334"]


def numbers_checksum(numbers):
    return zlib.crc32(struct.pack(f"<{len(numbers)}I", *numbers))


def make_characters():
    """Which code points belong to what, and how they are normalised: ids alone hardly tell."""
    text = "".join(map(chr, CODE_POINTS))
    out = {"properties": {}, "nfc": {}}
    for pattern in PROPERTIES:
        pieces = pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(text)
        out["properties"][pattern] = numbers_checksum([ord(c) for piece, _ in pieces for c in piece])
    digits = pre_tokenizers.Digits(individual_digits=True)
    out["digits"] = numbers_checksum([c for c in CODE_POINTS if len(digits.pre_tokenize_str(f"a{chr(c)}b")) == 3])
    for name, options in (("words", {"single_word": True}), ("spaces", {"rstrip": True})):
        tokenizer = Tokenizer(models.BPE({"Q": 0}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.add_tokens([AddedToken("QQ", **options)])
        found = [tokenizer.encode("QQ" + chr(c)) for c in CODE_POINTS]
        has = [e.ids == [0, 0] if name == "words" else e.offsets[0][1] == 3 for e in found]
        out[name] = numbers_checksum([c for c, is_in in zip(CODE_POINTS, has) if is_in and c != ord("Q")])
    nfc = normalizers.NFC()
    for context in NORMALIZED:
        crc = 0
        for c in CODE_POINTS:
            crc = zlib.crc32(nfc.normalize_str(context.replace("{}", chr(c))).encode() + b"\n", crc)
        out["nfc"][context] = crc
    return out


def make_small():
    models_of, out = {}, []
    for number, (name, tokenizer, options) in enumerate(small_tokenizers()):
        content = json.loads(tokenizer.to_str())
        model = content["model"]
        if options.get("legacy"):
            model["merges"] = [" ".join(merge) for merge in model["merges"]]
        if options.get("ignore_merges"):
            model["ignore_merges"] = True
            del model["merges"][::7]  # tokens that no merge makes
        made = Tokenizer.from_str(json.dumps(content))
        cases = []
        for text in texts_of(100 + number, 40, options.get("parts", PARTS)) + PARTS[:: 1 + number % 3]:
            ids = made.encode(text, add_special_tokens=False).ids
            cases.append([text, ids])
        # Most have the same model, which is kept once.
        key = json.dumps(content.pop("model"))
        label = models_of.setdefault(key, f"model {len(models_of)}")
        entry = {"name": name, "model": label, "tokenizer": content, "cases": cases}
        if options.get("template"):
            entry["template"] = [made.encode("").ids[:1], made.encode("").ids[1:]]
        out.append(entry)
    return {"models": {label: json.loads(key) for key, label in models_of.items()}, "tokenizers": out, "characters": make_characters()}


def main():
    (HERE / "small.json").write_text(json.dumps(make_small(), separators=(",", ":")) + "\n")
    if len(sys.argv) < 2:
        return
    (HERE / "shared.json").write_text(json.dumps(make_shared(Path(sys.argv[1])), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
