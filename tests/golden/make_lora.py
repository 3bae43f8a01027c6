#!/usr/bin/env python3
"""Adds to golden models what peft computes in float64 with low-rank adapters (lora.safetensors): the loss and the gradients of the first
batch, and twenty AdamW steps.

    python3 -m venv venv && venv/bin/pip install torch transformers peft safetensors
    venv/bin/python tests/golden/make_lora.py

The batches are those of expected.safetensors. Needs the folders that make_golden.py wrote. Both factors of every adapter are random, so
that each has a gradient; they are stored as float32 values.
"""

import json
import math
import pathlib

import peft
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

import make_golden

# golden_lora.h has the same.
ADAPTERS = {
    "gpt2": dict(r=4, lora_alpha=6, target_modules="all-linear", fan_in_fan_out=True),
    "llama_untied": dict(r=3, lora_alpha=7, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "mlp.down_proj"]),
    "qwen3": dict(r=5, lora_alpha=5, target_modules=["k_proj", "q_proj", "gate_proj", "up_proj"]),
}
MODELS = {
    "gpt2": (GPT2Config, GPT2LMHeadModel, "eager"),
    "llama_untied": (LlamaConfig, LlamaForCausalLM, "sdpa"),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, "sdpa"),
}


class Trained:
    """What train() asks of a model, without its frozen parameters."""

    def __init__(self, model):
        self.model = model

    def parameters(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def __call__(self, **arguments):
        return self.model(**arguments)


def make(folder, seed):
    config_type, model_type, attention = MODELS[folder.name]
    config = json.loads((folder / "config.json").read_text())
    base = model_type(config_type(**config, attn_implementation=attention)).double()
    weights = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            parameter.copy_(weights[name].double())
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
    norms = make_golden.train(Trained(model), ids, targets, clip_norm=float("inf"))[1]
    clip_norm = sorted(norms)[make_golden.STEPS // 2]
    restore()
    losses, norms, rates = make_golden.train(Trained(model), ids, targets, clip_norm)
    assert losses[0] == loss.item()
    metadata = {key: repr(float(value)) for key, value in make_golden.OPTIMIZER.items()}
    metadata["clip_norm"] = repr(clip_norm)
    tensors |= dict(ids=batch["ids"], targets=batch["targets"], losses=torch.tensor(losses, dtype=torch.float64),
                    grad_norms=torch.tensor(norms, dtype=torch.float64), learning_rates=torch.tensor(rates, dtype=torch.float64))
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "lora.safetensors", metadata)
    print(folder.name, len(adapters), "adapter tensors, loss", losses[0], "->", losses[-1], "clip", clip_norm)


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for module, prefix in ((modeling_llama, "Llama"), (modeling_qwen3, "Qwen3")):
        getattr(module, prefix + "RMSNorm").forward = make_golden.norm_forward
        getattr(module, prefix + "RotaryEmbedding").forward = make_golden.rotary_forward
    for seed, name in enumerate(ADAPTERS, start=20):
        make(pathlib.Path(__file__).resolve().parent / name, seed)


if __name__ == "__main__":
    main()
