#!/usr/bin/env python3
"""Writes sentencepiece_small.json and sentencepiece_shared.json beside itself: what Google's `sentencepiece` makes of texts.

    pip install sentencepiece==0.2.3
    python3 make_sentencepiece_golden.py [SHARED_DATA]      # a folder with tokenizers/llama2 and text/; some minutes

sentencepiece_small.json holds models trained here, one for each thing that a model can ask for, with texts and their ids.
sentencepiece_shared.json holds what Llama 2's model, which is not in the repository, makes of texts that are not, as
checksums: CRC-32 of the ids as 32-bit little-endian numbers, each text's behind their count.
"""
import base64
import json
import random
import struct
import sys
import tempfile
import zlib
from pathlib import Path

import sentencepiece

HERE = Path(__file__).parent
PARTS = [
    "the", " the", "The cat", " sat", "ing", " ", "  ", "   ", "\t", "\n", "\n\n", ".", ", ", "!", "1", " 12", "2024", "'s", "e", "é", "e\u0301",
    "ﬁ", "Ⅷ", "①", "ｆｕｌｌ", "\u3000", "\u00a0", "▁", " ▁", "日本語", "한국어", "ß", "привет", "😀", "👩\u200d👩", "\u200b", "\ufeff", "\0", "<s>", "</s>", "<unk>",
    "<sep>", "<mask>", "a<sep>b", "<0x41>", "\u2581\u2581", "q", "Z", "zzz", "_", "ab", "\ufffd",
]
CONTEXTS = ["{}", "a{}", "{}a", " {}", "{} ", "\n{}", "▁{}", "{}{}", "e{}\u0301"]
BLOCK = 4096


def texts_of(seed, count, parts=PARTS):
    rng = random.Random(seed)
    return ["".join(rng.choice(parts) for _ in range(rng.randint(1, 12))) for _ in range(count)]


def checksum(texts, processor):
    crc, count = 0, 0
    for text in texts:
        ids = processor.encode(text)
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


def trained(**options):
    """A model of few pieces, which does not know all characters of PARTS."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        known = [part for part in PARTS if part not in ("日本語", "привет", "q", "Z", "zzz", "①", "ß", "\ufffd")]
        sentences = [text.replace("\0", "") for text in texts_of(2, 3000, known)] + ["the cat sat on the mat", "the 12 cats"] * 50
        lines = [line for text in sentences for line in text.split("\n") if line]
        (folder / "text").write_text("\n".join(lines))
        rules = options.pop("rules", None)
        if rules:
            (folder / "rules").write_text(rules)
            options["normalization_rule_tsv"] = str(folder / "rules")
        else:
            options.setdefault("normalization_rule_name", "identity")
        options.setdefault("vocab_size", 420)
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / "m"), hard_vocab_limit=False, num_threads=1,
            minloglevel=2, character_coverage=1.0, max_sentence_length=100000, **options
        )
        return (folder / "m.model").read_bytes()


LLAMA = dict(model_type="bpe", byte_fallback=True, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True)
# From, as code points, and to: e and an acute accent, full-width letters, a ligature, and a character that goes away.
RULES = "65 301\tE9\nFF46\t66\nFF55\t75\nFB01\t66 69\n200B\t\n3000\t20\n"


def small_models():
    yield "as Llama's", trained(**LLAMA)
    yield "as Gemma's", trained(**LLAMA | dict(add_dummy_prefix=False, split_by_whitespace=False, user_defined_symbols=["<sep>", "\n", "\n\n", "  "]))
    yield "bpe, unknown characters", trained(model_type="bpe", remove_extra_whitespaces=False)
    yield "bpe, pieces across words", trained(model_type="bpe", remove_extra_whitespaces=False, split_by_whitespace=False)
    yield "bpe, spaces removed", trained(model_type="bpe")
    yield "bpe, space behind", trained(**LLAMA | dict(treat_whitespace_as_suffix=True))
    yield "bpe, rules", trained(**LLAMA | dict(rules=RULES))
    yield "unigram", trained(model_type="unigram")
    yield "unigram as T5's", trained(model_type="unigram", rules=RULES, bos_id=-1, eos_id=1, unk_id=2, pad_id=0)
    yield "unigram, byte fallback", trained(model_type="unigram", byte_fallback=True, remove_extra_whitespaces=False)
    yield "characters", trained(model_type="char", remove_extra_whitespaces=False, vocab_size=60, user_defined_symbols=["<mask>"])
    yield "words", trained(model_type="word", remove_extra_whitespaces=False)


def make_small():
    out = []
    for number, (name, model) in enumerate(small_models()):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        texts = texts_of(100 + number, 60) + PARTS + ["", " ", "the cat sat on the mat " * 30]
        out.append({
            "name": name, "model": base64.b64encode(model).decode(), "special": [processor.bos_id(), processor.eos_id()],
            "cases": [[text, processor.encode(text), processor.decode(processor.encode(text))] for text in texts],
            "bytes": [checksum([random_bytes(seed, 400)], processor)[1] for seed in range(20)],
        })
        print(name, processor.vocab_size(), file=sys.stderr)
    return out


def make_shared(data):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(data / "tokenizers/llama2/tokenizer.model"))
    nasty = texts_of(1, 400)
    nasty += ["a" * 5000, " " * 3000 + "x", "\n" * 2000, "1" * 1999, "é" * 1500, "ab" * 2000, "!" * 3000, "", "e" + "\u0301" * 50, "▁" * 100]
    unicode = {}
    for context in CONTEXTS:
        unicode[context] = [
            checksum([context.replace("{}", chr(c)) for c in range(begin, begin + BLOCK) if not 0xD800 <= c < 0xE000], processor)[1]
            for begin in range(0, 0x110000, BLOCK)
        ]
    return {
        "block": BLOCK,
        "texts": {
            file: checksum([(data / "text" / file).read_bytes().decode()], processor)
            for file in ("wikitext2-valid.txt", "wikitext2-test.txt", "tinyshakespeare.txt", "sentences.jsonl")
        },
        "nasty": [[text, checksum([text], processor)[1]] for text in nasty],
        "unicode": unicode,
        "bytes": [checksum([random_bytes(seed, 2000)], processor)[1] for seed in range(100)],
    }


def main():
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[3] / "shared/data"
    (HERE / "sentencepiece_small.json").write_text(json.dumps({"models": make_small()}, separators=(",", ":")) + "\n")
    (HERE / "sentencepiece_shared.json").write_text(json.dumps(make_shared(data), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
