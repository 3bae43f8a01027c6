#!/usr/bin/env python3
"""Writes records.jsonl and loss.json beside itself: prompts and completions, and what PyTorch makes of them in float64 with the
tiny model for bytes of ../choices.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python tests/golden/instructions/make_loss_golden.py

Each record goes through the model by itself: no packing, no mask of attention, no positions that are given. The loss is the mean
over all tokens of all completions, each with the token that ends a document (256); what is longer than the context is cut there.
`grad_norm` is that of the whole model's gradient of it; `all` are the same numbers with the loss on all tokens but the first.
"""

import json
import pathlib

import torch
from transformers import GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent
CONTEXT = 24
END = 256

RECORDS = [
    ("Q: 2+2\nA:", " 4"),
    ("a", "b"),
    ("", "no prompt"),
    ("no answer", ""),
    ("caf\u00e9 ", "cr\u00e8me"),
    ("long question here? ", "and a long answer behind it"),
    ("x", "yz"),
    ("far too long a question to be answered", "never"),
    ("Q: 3+3\nA:", " 6"),
    ("cc", "ddd"),
    ("exactly twenty-", "fourby."),
    ("e", "f"),
]


def measure(model, wants_all):
    model.zero_grad()
    total, count, left_out = torch.zeros((), dtype=torch.float64), 0, 0
    for prompt, completion in RECORDS:
        before = len(prompt.encode())
        ids = (list((prompt + completion).encode()) + [END])[:CONTEXT]
        first = 1 if wants_all else max(before, 1)
        if first >= len(ids):
            left_out += 1
            continue
        logits = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
        for at in range(first, len(ids)):
            total = total - logits[at - 1, ids[at]]
            count += 1
    loss = total / count
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
    return {"loss": loss.item(), "grad_norm": norm.item(), "tokens": count, "left_out": left_out}


def main():
    model = GPT2LMHeadModel.from_pretrained(HERE.parent / "choices").double().eval()
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in RECORDS]
    (HERE / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = {"answers": measure(model, False), "all": measure(model, True)}
    (HERE / "loss.json").write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
