#!/usr/bin/env python3
"""Adds to golden models the twenty AdamW steps that PyTorch makes in float64 with a part of the parameters frozen (frozen.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_frozen.py

The batches are those of expected.safetensors. Needs the folders that make_golden.py wrote.
"""

import fnmatch
import pathlib

import torch

import make_golden

# By the families' own names; golden_frozen.h has the same by ours.
FROZEN = {
    "gpt2": ["transformer.wte.weight", "transformer.h.0.*", "*.mlp.c_proj.weight", "*.ln_1.weight"],
    "llama_untied": ["model.embed_tokens.weight", "model.layers.0.*", "*.mlp.down_proj.weight", "*.input_layernorm.weight"],
}


def make(folder, model, weights):
    frozen = 0
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in FROZEN[folder.name]):
            parameter.requires_grad_(False)
            frozen += 1
    losses, clip_norm = make_golden.add_training(folder / "frozen.safetensors", model, lambda: make_golden.fill_from(model, weights))
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != torch.equal(parameter, weights[name].double()), name
    print(folder.name, "frozen", frozen, "loss", losses[0], "->", losses[-1], "clip", clip_norm)


def main():
    for folder, model, weights in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        make(folder, model, weights)


if __name__ == "__main__":
    main()
