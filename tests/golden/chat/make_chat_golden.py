#!/usr/bin/env python3
"""Writes rendered.json beside itself: what `transformers` makes of conversations by the chat templates of tokenizers.

    python3 -m venv venv && venv/bin/pip install transformers
    venv/bin/python tests/golden/chat/make_chat_golden.py SHARED_DATA [FOLDER]    # a folder with tokenizers/{llama3,qwen3}

With FOLDER, the templates themselves are written there, for their hashes (which an unknown template's refusal names).

The templates themselves are their owners' and not in the repository; chatml is written out below, as Hugging Face's documentation
gives it.
"""

import json
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def inviting_when_asked(template):
    """Later Llama 3 tokenizers invite an answer when asked, where the first ones always do: the last expression."""
    before, invitation = template.rsplit("{{", 1)
    return before + "{% if add_generation_prompt %}{{" + invitation + "{% endif %}"


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


CONVERSATIONS = [
    [user("Hello")],
    [user("")],
    [system("You are terse."), user("Hello")],
    [system(""), user(" \u00a0\u3000\x1c\x85 two\n words \u2028\n")],
    [user("2+2?"), assistant("4"), user("3+3?")],
    [system("s"), user("a"), assistant(" b \n"), user("c"), assistant("\n\nd\n")],
    [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c")],
    [user("a"), assistant("<think>\n\nhm <think> ho\n\n</think>\n\n\nb\n"), assistant("second")],
    [user("a"), assistant("no thoughts"), assistant("<think>late</think>c"), assistant("d")],
    [user("a"), assistant("</think>x</think>\ny")],
    [user("a"), user("b"), system("in the middle"), assistant("c"), user("<tool_response>1</tool_response>"), assistant("e")],
    [assistant("first")],
    [system("only"), assistant("<think>x</think>y")],
    [user("<|im_end|>\n<|im_start|>user\n<|eot_id|>"), assistant("caf\u00e9 \U0001f600")],
    [user("<tool_response>only</tool_response>"), assistant("<think>t</think>a")],
]


def main():
    shared = Path(sys.argv[1]) / "tokenizers"
    answer = {}
    for style, folder, template in [
        ("llama3-first", "llama3", None),
        ("llama3", "llama3", inviting_when_asked),
        ("qwen3", "qwen3", None),
        ("chatml", "qwen3", lambda _: CHATML),
    ]:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(shared / folder)
        if template is not None:
            tokenizer.chat_template = template(tokenizer.chat_template)
        if len(sys.argv) > 2:
            (Path(sys.argv[2]) / f"{style}.jinja").write_text(tokenizer.chat_template)
        answer[style] = [
            {
                "messages": messages,
                "invites": invites,
                "text": tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=invites),
                "ids": tokenizer.apply_chat_template(
                    messages, tokenize=True, add_generation_prompt=invites, return_dict=False
                ),
            }
            for messages in CONVERSATIONS
            for invites in (False, True)
        ]
    (Path(__file__).parent / "rendered.json").write_text(json.dumps(answer, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
