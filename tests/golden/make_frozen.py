#!/usr/bin/env python3
"""Adds to golden models the twenty AdamW steps that PyTorch makes in float64 with a part of the parameters frozen (frozen.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_frozen.py

The batches are those of expected.safetensors. Needs the folders that make_golden.py wrote.
"""

import fnmatch
import pathlib

import torch
from safetensors.torch import load_file, save_file

import make_golden

# By the families' own names; golden_frozen.h has the same by ours.
FROZEN = {
    "gpt2": ["transformer.wte.weight", "transformer.h.0.*", "*.mlp.c_proj.weight", "*.ln_1.weight"],
    "llama_untied": ["model.embed_tokens.weight", "model.layers.0.*", "*.mlp.down_proj.weight", "*.input_layernorm.weight"],
}


class Trained:
    """What train() asks of a model, without its frozen parameters."""

    def __init__(self, model):
        self.model = model

    def parameters(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def __call__(self, **arguments):
        return self.model(**arguments)


def make(folder, model):
    weights = load_file(folder / "model.safetensors")

    def restore():
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name].double())

    frozen = 0
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in FROZEN[folder.name]):
            parameter.requires_grad_(False)
            frozen += 1
    batch = load_file(folder / "expected.safetensors")
    ids, targets = batch["ids"].long(), batch["targets"].long()
    restore()
    norms = make_golden.train(Trained(model), ids, targets, clip_norm=float("inf"))[1]
    clip_norm = sorted(norms)[make_golden.STEPS // 2]
    restore()
    losses, norms, rates = make_golden.train(Trained(model), ids, targets, clip_norm)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != torch.equal(parameter, weights[name].double()), name
    metadata = {key: repr(float(value)) for key, value in make_golden.OPTIMIZER.items()}
    metadata["clip_norm"] = repr(clip_norm)
    tensors = dict(ids=batch["ids"], targets=batch["targets"], losses=torch.tensor(losses, dtype=torch.float64),
                   grad_norms=torch.tensor(norms, dtype=torch.float64), learning_rates=torch.tensor(rates, dtype=torch.float64))
    save_file(tensors, folder / "frozen.safetensors", metadata)
    print(folder.name, "frozen", frozen, "loss", losses[0], "->", losses[-1], "clip", clip_norm)


def main():
    for folder, model in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        make(folder, model)


if __name__ == "__main__":
    main()
