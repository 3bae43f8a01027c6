#!/usr/bin/env python3
"""Writes training.json beside itself: the merges that Hugging Face's BpeTrainer finds.

    pip install tokenizers==0.23.3
    python3 make_training_golden.py [SHARED_DATA]      # a folder with text/; a minute

Of texts made here the merges themselves, of the shared text their number and a CRC-32 of them, one "left right" a line.
"""
import json
import os
import random
import sys
import zlib
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from make_tokenizer_golden import LLAMA3, texts_of

HERE = Path(__file__).parent


def merges_of(texts, pattern, vocab, special, least=0):
    tokenizer = Tokenizer(models.BPE())
    if pattern == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=least, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]["merges"]


def letters(seed, alphabet, words, longest):
    rng = random.Random(seed)
    return " ".join("".join(rng.choice(alphabet) for _ in range(rng.randint(1, longest))) for _ in range(words))


def main():
    end = ["<|endoftext|>"]
    cases = []
    for name, texts, pattern, vocab, special, least in [
        ("nasty", texts_of(5, 300), "gpt2", 700, end, 0),
        ("nasty, llama3", texts_of(5, 300), "llama3", 700, ["<a>", "<b>"] + end, 0),
        ("two letters", [letters(1, "ab", 400, 30)], "gpt2", 900, end, 0),
        ("one letter", [letters(2, "a", 60, 60)], "gpt2", 500, [], 0),
        ("three letters, ties", [letters(3, "abc", 40, 12)], "gpt2", 500, end, 0),
        ("least count", texts_of(6, 200), "gpt2", 2000, end, 3),
        ("text of a special token", ["<|endoftext|> " * 50 + "x<|endoftext|>"], "gpt2", 300, end, 0),
    ]:
        merges = merges_of(texts, pattern, vocab, special, least)
        cases.append({"name": name, "texts": texts, "pattern": pattern, "vocab": vocab, "special": special, "least": max(least, 1), "merges": merges})
        print(name, len(merges), len(merges) - len({tuple(m) for m in merges}), "of them twice", file=sys.stderr)
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[3] / "shared/data"
    texts = [(data / "text" / file).read_bytes().decode() for file in ("wikitext2-valid.txt", "wikitext2-test.txt", "tinyshakespeare.txt")]
    shared = {}
    for pattern in ("gpt2", "llama3"):
        merges = merges_of(texts, pattern, 16000, end)
        shared[pattern] = [len(merges), zlib.crc32("".join(f"{a} {b}\n" for a, b in merges).encode())]
    (HERE / "training.json").write_text(json.dumps({"cases": cases, "shared": shared}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
