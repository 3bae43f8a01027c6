#!/usr/bin/env python3
"""Writes unicode_tables.cpp: general categories of Unicode 16.0 and what NFC needs of Unicode 9.0.

These are the versions that Hugging Face's `tokenizers` 0.23 has: its regular expressions (Oniguruma 6.9.10) know Unicode
16.0, its normaliser (unicode-normalization-alignments) Unicode 9.0. Normalisation of what 9.0 assigns is stable, so its
part is taken from the same data, of the code points that 9.0 had.

    pip install unicodedata2==16.0.0        the data; Perl (5.18 or newer) knows when a code point was assigned
    python3 make_unicode_tables.py >unicode_tables.cpp
"""
import subprocess
import sys

import unicodedata2 as unicode

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
NUM_CODE_POINTS = 0x110000
PERL = r'for (0..0x10FFFF) { no warnings; print chr($_) =~ /\p{Present_In: 9.0}/ ? 1 : 0 }'


def ranges(value_of):
    """(first code point, value) wherever the value changes."""
    out = []
    for code_point in range(NUM_CODE_POINTS):
        value = value_of(code_point)
        if not out or out[-1][1] != value:
            out.append((code_point, value))
    return out


def decomposition(code_point):
    text = unicode.decomposition(chr(code_point))
    return [int(part, 16) for part in text.split()] if text and not text.startswith("<") else []


def rows(items, each):
    return "\n".join("    " + " ".join(items[i : i + each]) for i in range(0, len(items), each))


def main():
    assert unicode.unidata_version == "16.0.0", unicode.unidata_version
    old = subprocess.run(["perl", "-e", PERL], capture_output=True, check=True, text=True).stdout
    assert len(old) == NUM_CODE_POINTS

    categories = ranges(lambda c: CATEGORIES.index(unicode.category(chr(c))))
    classes = ranges(lambda c: unicode.combining(chr(c)) if old[c] == "1" else 0)
    decompositions = []
    for code_point in range(NUM_CODE_POINTS):
        parts = decomposition(code_point) if old[code_point] == "1" else []
        if not parts:
            continue
        first, second = parts[0], parts[1] if len(parts) == 2 else 0
        composes = unicode.normalize("NFC", chr(code_point)) == chr(code_point)
        decompositions.append(f"{{{code_point:#x}, {first:#x}, {second:#x}, {int(composes)}}},")

    sys.stdout.write(f"""// Made by make_unicode_tables.py from Unicode {unicode.unidata_version} (NFC: what Unicode 9.0 had of it). Not to be edited.
// Derived from data files under the Unicode License v3: third_party/unicode-license.txt has its notice.
#include "data/tokens/bpe/unicode_tables.h"

// clang-format off
namespace scaletrain::unicode_data {{

const std::array<CategoryRange, {len(categories)}> kCategories = {{{{
{rows([f"{{{start:#x}, {value}}}," for start, value in categories], 8)}
}}}};

const std::array<CombiningRange, {len(classes)}> kCombiningClasses = {{{{
{rows([f"{{{start:#x}, {value}}}," for start, value in classes], 8)}
}}}};

const std::array<Decomposition, {len(decompositions)}> kDecompositions = {{{{
{rows(decompositions, 5)}
}}}};

}}  // namespace scaletrain::unicode_data
""")
    print(len(categories), len(classes), len(decompositions), file=sys.stderr)


main()
