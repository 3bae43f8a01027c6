#!/usr/bin/env python3
"""Writes greedy.json beside itself: the likeliest tokens behind a few prompts, one after the other, as transformers' `generate` finds them
with the golden models (the folders that make_golden.py wrote).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_greedy.py

Each token is the likeliest by so much that no rounding decides: MARGIN of its logit before the second one's. Texts end where the model's
context does: windows of 5 tokens have let go of most of it by then.
"""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

FOLDERS = ["gpt2", "llama_untied", "llama3_scaled", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"]
MARGIN = 1e-4
PROMPTS, PROMPT, CONTEXT = 6, 3, 16


def main():
    here = pathlib.Path(__file__).resolve().parent
    generator = torch.Generator().manual_seed(3)
    answer = {}
    for name in FOLDERS:
        model = AutoModelForCausalLM.from_pretrained(here / name, dtype=torch.float64, attn_implementation="eager").eval()
        rows = []
        while len(rows) < PROMPTS:
            prompt = torch.randint(0, model.config.vocab_size, (1, PROMPT), generator=generator)
            made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=CONTEXT - PROMPT,
                                  eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True)
            best = torch.stack(made.logits)[:, 0].topk(2).values
            if (best[:, 0] - best[:, 1]).min() < MARGIN:
                continue
            rows.append({"prompt": prompt[0].tolist(), "tokens": made.sequences[0, PROMPT:].tolist()})
        answer[name] = rows
    text = ",\n".join(f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(row) for row in rows) + "]" for name, rows in answer.items())
    (here / "greedy.json").write_text("{" + text + "}\n")


if __name__ == "__main__":
    main()
