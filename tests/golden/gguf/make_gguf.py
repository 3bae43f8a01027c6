#!/usr/bin/env python3
"""Rows of numbers as the gguf package (of llama.cpp) quantises them and reads them back: blocks.json.

    python3 tests/golden/gguf/make_gguf.py        (needs gguf and numpy from PyPI)
"""

import json
import pathlib

import numpy
from gguf import GGMLQuantizationType, quants

random = numpy.random.default_rng(7)
ROWS = {
    "normal": random.normal(0, 0.02, 64),
    "one large number": numpy.concatenate([random.normal(0, 0.02, 31), [-3.5]]),
    "zeros": numpy.zeros(32),
    "small": random.normal(0, 1e-6, 32),
    "equal": numpy.full(32, 0.25),
    "ties": numpy.linspace(-1, 1, 32),
}


def main():
    cases = []
    for name, row in ROWS.items():
        row = row.astype(numpy.float32)
        case = {"name": name, "values": row.view(numpy.uint32).tolist()}
        for word, kind in (("q8_0", GGMLQuantizationType.Q8_0), ("q4_0", GGMLQuantizationType.Q4_0)):
            encoded = quants.quantize(row, kind)
            case[word] = {"bytes": encoded.tolist(), "decoded": quants.dequantize(encoded, kind).view(numpy.uint32).tolist()}
        cases.append(case)
    file = pathlib.Path(__file__).with_name("blocks.json")
    file.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
