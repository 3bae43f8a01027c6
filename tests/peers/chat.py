#!/usr/bin/env python3
"""The chat templates that exports carry (lib/data/tokens/chat/chat_jinja.h), run by transformers: the text is that of
tests/golden/chat/rendered.json, which our own rendering is held to.

    venv/bin/python tests/peers/chat.py    (scripts/peers.sh makes the environment and runs this)
"""

import json
import pathlib
import re

from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = {"Llama3": "llama3", "Llama3First": "llama3-first", "Qwen3": "qwen3", "Chatml": "chatml"}


def main():
    text = (ROOT / "lib/data/tokens/chat/chat_jinja.h").read_text()
    templates = re.findall(r'k(\w+)Jinja = R"\((.*?)\)";', text, re.DOTALL)
    golden = json.loads((ROOT / "tests/golden/chat/rendered.json").read_text())
    assert sorted(NAMES[name] for name, _ in templates) == sorted(golden)
    for name, template in templates:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), chat_template=template)
        for one in golden[NAMES[name]]:
            ours = tokenizer.apply_chat_template(one["messages"], tokenize=False, add_generation_prompt=one["invites"])
            assert ours == one["text"], (name, one, ours)
        print(f"{NAMES[name]}: {len(golden[NAMES[name]])} conversations are rendered alike")


if __name__ == "__main__":
    main()
