#!/usr/bin/env python3
"""Twenty steps of AdamW with moments in 8 bits (moments.json), in float64 by numpy, written from the paper:

    Dettmers, Lewis, Shleifer, Zettlemoyer 2022: 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861)

    python3 tests/golden/make_moments.py

The numbers of dynamic tree quantisation are derived here from its bits. Blocks are consecutive elements of a row: the largest power of two of which
rows consist, from 16 to 256; vectors have none. One rule is ours: a second moment that is not zero is not rounded to zero.
"""

import json
import pathlib

import numpy

STEPS = 20
SETTINGS = dict(learning_rate=0.01, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
SHAPES = dict(a=(6, 128), b=(5, 48), c=(40,), d=(2, 256), e=(3, 24))


def number_of(bits, is_signed):
    """Of eight bits: a sign if there is one, leading zeros that count an exponent of ten, a one that ends them, and a linear fraction, which is in
    the middle of its step between 0.1 and 1. No bit but zeros is 0; the last pattern, which the fraction leaves over, is 1."""
    sign = 1.0
    width = 8
    if is_signed:
        sign = -1.0 if bits & 0x80 else 1.0
        bits &= 0x7F
        width = 7
    if bits == 0:
        return 1.0 if sign < 0 else 0.0
    zeros = width - bits.bit_length()
    if zeros == 7:  # unsigned: a one alone is the last pattern
        return 1.0
    steps = 1 << (width - zeros - 1)
    fraction = bits - steps
    return sign * (0.1 + 0.9 * (fraction + 0.5) / steps) * 10.0 ** -zeros


def numbers(is_signed):
    """All of them, ascending, in the precision that they are kept in."""
    return numpy.unique(numpy.array([number_of(bits, is_signed) for bits in range(256)])).astype(numpy.float32).astype(numpy.float64)


FIRST, SECOND = numbers(True), numbers(False)
assert len(FIRST) == len(SECOND) == 256, (len(FIRST), len(SECOND))


def encode(moments, table, zero_is_kept):
    """(codes, scale) of a block."""
    scale = numpy.abs(moments).max()
    if scale == 0:
        return numpy.full(moments.shape, int(numpy.searchsorted(table, 0.0))), scale
    x = moments / scale
    codes = numpy.abs(x[:, None] - table[None, :]).argmin(axis=1)
    if zero_is_kept:
        codes = numpy.where((x != 0) & (codes == 0), 1, codes)
    return codes, scale


def block_of(shape):
    if len(shape) != 2:
        return 0
    for block in (256, 128, 64, 32, 16):
        if shape[1] % block == 0:
            return block
    return 0


class Moments:
    def __init__(self, shape):
        self.block, self.count = block_of(shape), int(numpy.prod(shape))
        self.first, self.second = numpy.zeros(self.count), numpy.zeros(self.count)
        self.codes = None

    def keep(self, first, second):
        if self.block == 0:
            self.first, self.second = first, second
            return
        self.codes = ([], [])
        for begin in range(0, self.count, self.block):
            part = slice(begin, begin + self.block)
            for index, (moments, table, kept) in enumerate(((first, FIRST, self.first), (second, SECOND, self.second))):
                codes, scale = encode(moments[part], table, index == 1)
                kept[part] = table[codes] * scale
                self.codes[index].extend(int(code) for code in codes)


def gradient(values, step):
    """Over seven powers of ten within each block, and zero at times where it was not before."""
    i = numpy.arange(len(values), dtype=numpy.float64)
    g = (values - numpy.sin(0.11 * i)) * 10.0 ** -(numpy.arange(len(values)) % 7) + 1e-3 * numpy.sin(0.7 * i + 1.3 * step)
    return numpy.where((numpy.arange(len(values)) % 5 == 0) & (step % 3 != 1), 0.0, g)


def main():
    beta1, beta2 = SETTINGS["beta1"], SETTINGS["beta2"]
    out = dict(settings=SETTINGS, steps=STEPS, tensors={})
    for name, shape in SHAPES.items():
        count = int(numpy.prod(shape))
        p = numpy.cos(0.37 * numpy.arange(count, dtype=numpy.float64))
        moments = Moments(shape)
        decay = SETTINGS["weight_decay"] if len(shape) == 2 else 0.0
        for step in range(1, STEPS + 1):
            g = gradient(p, step)
            first = beta1 * moments.first + (1 - beta1) * g
            second = beta2 * moments.second + (1 - beta2) * g * g
            direction = first / (1 - beta1**step) / (numpy.sqrt(second / (1 - beta2**step)) + SETTINGS["epsilon"])
            p = p - SETTINGS["learning_rate"] * (direction + decay * p)
            moments.keep(first, second)
        first_codes, second_codes = moments.codes or ([], [])
        out["tensors"][name] = dict(shape=list(shape), block=moments.block, values=[float(v) for v in p], first_codes=first_codes,
                                    second_codes=second_codes)
    lines = ",\n".join(f'"{name}": {json.dumps(tensor)}' for name, tensor in out["tensors"].items())
    path = pathlib.Path(__file__).resolve().parent / "moments.json"
    path.write_text(f'{{"settings": {json.dumps(SETTINGS)}, "steps": {STEPS},\n"first": {json.dumps(FIRST.tolist())},\n'
                    f'"second": {json.dumps(SECOND.tolist())},\n"tensors": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
