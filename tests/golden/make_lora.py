#!/usr/bin/env python3
"""Adds to golden models what peft computes in float64 with low-rank adapters (lora.safetensors): the loss and the gradients of the first
batch, and twenty AdamW steps.

    python3 -m venv venv && venv/bin/pip install torch transformers peft safetensors
    venv/bin/python tests/golden/make_lora.py

The batches are those of expected.safetensors. Needs the folders that make_golden.py wrote. Both factors of every adapter are random, so
that each has a gradient; they are stored as float32 values.
"""

import math
import pathlib

import peft
import torch
from safetensors.torch import load_file

import make_golden

# golden_lora.h has the same.
ADAPTERS = {
    "gpt2": dict(r=4, lora_alpha=6, target_modules="all-linear", fan_in_fan_out=True),
    "llama_untied": dict(r=3, lora_alpha=7, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "mlp.down_proj"]),
    "qwen3": dict(r=5, lora_alpha=5, target_modules=["k_proj", "q_proj", "gate_proj", "up_proj"]),
}


def make(folder, base, seed):
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **ADAPTERS[folder.name]),
                                autocast_adapter_dtype=False).double()
    generator = torch.Generator().manual_seed(seed)
    adapters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name for name in adapters)
    values = {}
    for name, parameter in adapters.items():
        spread = 1 / math.sqrt(parameter.shape[1]) if "lora_A" in name else 0.1
        values[name] = (torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * spread).double()

    def restore():
        with torch.no_grad():
            for name, parameter in adapters.items():
                parameter.copy_(values[name])

    def stored(name):
        return name.replace(".default.weight", ".weight")

    batch = load_file(folder / "expected.safetensors")
    ids, targets = batch["ids"].long(), batch["targets"].long()
    restore()
    loss = make_golden.loss_of(model, ids[0], targets[0])
    loss.backward()
    tensors = {"gradient/" + stored(n): p.grad.clone() for n, p in adapters.items()}
    tensors |= {"adapter/" + stored(n): v.clone() for n, v in values.items()}
    losses, clip_norm = make_golden.add_training(folder / "lora.safetensors", model, restore, tensors)
    assert losses[0] == loss.item()
    print(folder.name, len(adapters), "adapter tensors, loss", losses[0], "->", losses[-1], "clip", clip_norm)


def main():
    models = make_golden.open_models(pathlib.Path(__file__).resolve().parent, ADAPTERS)
    for seed, (folder, model, _) in enumerate(models, start=20):
        make(folder, model, seed)


if __name__ == "__main__":
    main()
