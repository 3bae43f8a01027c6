#!/usr/bin/env python3
"""Writes processors.json: what Hugging Face's LogitsProcessors make of logits, in float64, in the order of `generate`.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python tests/golden/sampling/make_sampling_golden.py

Each case has logits (float32, so that they are the same numbers in the test), the tokens of the text so far, the options,
the probabilities that a token is drawn with, and the model's own log-probability of the last token of the text.
"""

import json
import pathlib

import torch
from transformers.generation import logits_process

CLASSES = 40


def processed(logits, past, options):
    """As GenerationMixin._get_logits_processor puts them together."""
    scores = logits.to(torch.float64)[None, :]
    ids = torch.tensor(past)[None, :]
    processors = []
    if options["repetition_penalty"] != 1.0:
        processors.append(logits_process.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    if options["temperature"] != 1.0:
        processors.append(logits_process.TemperatureLogitsWarper(options["temperature"]))
    if options["top_k"] != 0:
        processors.append(logits_process.TopKLogitsWarper(options["top_k"]))
    if options["top_p"] < 1.0:
        processors.append(logits_process.TopPLogitsWarper(options["top_p"]))
    if options["min_p"] != 0.0:
        processors.append(logits_process.MinPLogitsWarper(options["min_p"]))
    for processor in processors:
        scores = processor(ids, scores)
    return torch.softmax(scores, -1)[0]


def main():
    none = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    variants = {
        "none": {},
        "repetition_penalty": {"repetition_penalty": 1.3},
        "repetition_reward": {"repetition_penalty": 0.7},
        "temperature_cold": {"temperature": 0.3},
        "temperature_hot": {"temperature": 2.5},
        "top_k": {"top_k": 5},
        "top_k_one": {"top_k": 1},
        "top_k_beyond": {"top_k": 1000},
        "top_p": {"top_p": 0.9},
        "top_p_small": {"top_p": 0.05},
        "min_p": {"min_p": 0.1},
        "min_p_large": {"min_p": 0.9},
        "all": {"repetition_penalty": 1.2, "temperature": 0.8, "top_k": 12, "top_p": 0.85, "min_p": 0.05},
        "k_and_p": {"temperature": 1.5, "top_k": 7, "top_p": 0.6},
    }
    generator = torch.Generator().manual_seed(1)
    cases = []
    for spread in (1.0, 4.0):
        for name, changes in variants.items():
            options = none | changes
            logits = (torch.randn(CLASSES, generator=generator, dtype=torch.float64) * spread).to(torch.float32)
            past = torch.randint(0, CLASSES, (9,), generator=generator).tolist()
            cases.append(
                {"name": f"{name}_{spread}"}
                | options
                | {
                    "past": past,
                    "logits": logits.tolist(),
                    "probabilities": processed(logits, past, options).tolist(),
                    "log_probability": torch.log_softmax(logits.to(torch.float64), -1)[past[-1]].item(),
                }
            )
    text = "{\"cases\": [\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n"
    (pathlib.Path(__file__).parent / "processors.json").write_text(text)


if __name__ == "__main__":
    main()
