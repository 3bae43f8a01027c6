#!/usr/bin/env python3
"""tokenizer_speed.py PROGRAM TOKENIZER TEXT [ROUNDS]: how fast `PROGRAM data build` turns TEXT into tokens on one
thread, by turns with the package `tokenizers` on one thread.

TOKENIZER: a tokenizer.json, or a folder with one. The program's time is that of the whole command (it reads the text
and writes the tokens) without that of the same command for an empty line, which is what it takes to start and to read
the tokenizer. The package is given the text as a whole, and its lines in batches of 1000; its loading is not counted.
Medians of ROUNDS (5), in MB of text a second. Needs: tokenizers.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer  # noqa: E402


def seconds(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main():
    program, tokenizer, text_file = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    file = os.path.join(tokenizer, "tokenizer.json") if os.path.isdir(tokenizer) else tokenizer
    with open(text_file, encoding="utf-8") as opened:
        text = opened.read()
    megabytes = len(text.encode()) / 1e6
    lines = text.splitlines(keepends=True)
    theirs = Tokenizer.from_file(file)

    with tempfile.TemporaryDirectory() as folder:
        empty = os.path.join(folder, "empty.txt")
        with open(empty, "w") as opened:
            opened.write("\n")

        def build(source):
            command = [program, "data", "build", source, "--tokenizer", tokenizer, "--threads", "1", "--overwrite"]
            subprocess.run(command + ["--output", os.path.join(folder, "out")], check=True, capture_output=True)

        def batches():
            for first in range(0, len(lines), 1000):
                theirs.encode_batch(lines[first : first + 1000])

        ours, whole, in_lines = [], [], []
        for _ in range(rounds):
            start = seconds(lambda: build(empty))
            ours.append(megabytes / (seconds(lambda: build(text_file)) - start))
            whole.append(megabytes / seconds(lambda: theirs.encode(text)))
            in_lines.append(megabytes / seconds(batches))

    ours, whole, in_lines = (statistics.median(values) for values in (ours, whole, in_lines))
    print(
        f"{megabytes:.1f} MB, {os.path.basename(os.path.normpath(tokenizer))}, medians of {rounds}: "
        f"ours {ours:.1f} MB/s; tokenizers {whole:.2f} (whole text: {ours / whole:.1f} times), "
        f"{in_lines:.2f} (its lines: {ours / in_lines:.1f} times)"
    )


if __name__ == "__main__":
    main()
