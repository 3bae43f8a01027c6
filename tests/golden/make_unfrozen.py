#!/usr/bin/env python3
"""Adds to golden models the twenty steps that PyTorch's AdamW, and of one its Adafactor, make in float64 while frozen parameters join
(unfrozen.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_unfrozen.py

What joins becomes a group of its own of the optimizer at its step, as PyTorch's add_param_group has it: its averages begin at zero,
and bias correction, or Adafactor's decay of squares, counts its own steps. The batches are those of expected.safetensors. Needs the folders that make_golden.py wrote.
"""

import fnmatch
import math
import pathlib

import torch
from safetensors.torch import load_file, save_file

import make_golden

# Patterns over the families' own names, and the steps behind which they join; golden_unfrozen.h has the same by ours.
NEVER = math.inf
JOINS = {
    "gpt2": [("*.h.0.ln_1.*", NEVER), ("transformer.h.0.*", 6), ("transformer.wte.weight", 13), ("transformer.wpe.weight", 13)],
    "llama_untied": [("model.layers.0.input_layernorm.*", NEVER), ("model.layers.0.*", 6), ("model.embed_tokens.weight", 13)],
}


def joining(folder, name):
    for pattern, step in JOINS[folder]:
        if fnmatch.fnmatchcase(name, pattern):
            return step
    return 0


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.0, betas=(make_golden.OPTIMIZER["beta1"], make_golden.OPTIMIZER["beta2"]),
                             eps=make_golden.OPTIMIZER["epsilon"], foreach=False)


# Its tensors are those of the file, which for GPT-2 are fused.
ADAFACTOR = dict(learning_rate=2e-2, beta2_exponent=0.8, clip_threshold=1.0, smallest_scale=1e-3)


def adafactor(groups):
    return torch.optim.Adafactor(groups, lr=0.0, beta2_decay=-ADAFACTOR["beta2_exponent"], eps=(1e-30, ADAFACTOR["smallest_scale"]),
                                 d=ADAFACTOR["clip_threshold"], foreach=False)


def train(model, joins, ids, targets, clip_norm, make_optimizer=adamw, scale=1.0):
    optimizer = None
    trained = []
    losses, norms, rates = [], [], []
    for step in range(make_golden.STEPS):
        new = [p for name, p in model.named_parameters() if joins[name] == step]
        for parameter in new:
            parameter.requires_grad_(True)
        groups = [dict(params=[p for p in new if p.dim() >= 2], weight_decay=make_golden.OPTIMIZER["weight_decay"]),
                  dict(params=[p for p in new if p.dim() < 2], weight_decay=0.0)]
        groups = [group for group in groups if group["params"]]
        if optimizer is None:
            optimizer = make_optimizer(groups)
        else:
            for group in groups:
                optimizer.add_param_group(group)
        trained += new
        optimizer.zero_grad()
        loss = make_golden.loss_of(model, ids[step], targets[step])
        loss.backward()
        norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in trained))
        if norm > clip_norm:
            for parameter in trained:
                parameter.grad.mul_(clip_norm / norm)
        for group in optimizer.param_groups:
            group["lr"] = scale * make_golden.learning_rate(step + 1)
        optimizer.step()
        for name, parameter in model.named_parameters():
            own = optimizer.state[parameter].get("step", torch.tensor(0.0)).item() if parameter in optimizer.state else 0
            assert own == max(0, step + 1 - joins[name]), name
        losses.append(loss.item())
        norms.append(norm)
        rates.append(scale * make_golden.learning_rate(step + 1))
    return losses, norms, rates


def make(folder, model):
    weights = load_file(folder / "model.safetensors")
    joins = {name: joining(folder.name, name) for name, _ in model.named_parameters()}

    def restore():
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(False)
                parameter.grad = None
                parameter.copy_(weights[name].double())

    batch = load_file(folder / "expected.safetensors")
    ids, targets = batch["ids"].long(), batch["targets"].long()
    tensors, metadata = dict(ids=batch["ids"], targets=batch["targets"]), {}

    def add(prefix, settings, **how):
        restore()
        norms = train(model, joins, ids, targets, float("inf"), **how)[1]
        clip_norm = sorted(norms)[make_golden.STEPS // 2]
        restore()
        losses, norms, rates = train(model, joins, ids, targets, clip_norm, **how)
        for name, parameter in model.named_parameters():
            assert (joins[name] == NEVER) == torch.equal(parameter, weights[name].double()), name
        metadata.update({prefix + key: repr(float(value)) for key, value in settings.items()})
        metadata[prefix + "clip_norm"] = repr(clip_norm)
        for key, values in (("losses", losses), ("grad_norms", norms), ("learning_rates", rates)):
            tensors[prefix + key] = torch.tensor(values, dtype=torch.float64)
        print(folder.name, prefix, sorted(set(joins.values())), "loss", losses[0], "->", losses[-1], "clip", clip_norm)

    add("", make_golden.OPTIMIZER)
    if folder.name == "llama_untied":
        settings = {key: make_golden.OPTIMIZER[key] for key in ("weight_decay", "warmup", "min_ratio")} | ADAFACTOR
        add("adafactor/", settings, make_optimizer=adafactor,
            scale=ADAFACTOR["learning_rate"] / make_golden.OPTIMIZER["learning_rate"])
    save_file(tensors, folder / "unfrozen.safetensors", metadata)


def main():
    for folder, model, _ in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        if folder.name in JOINS:
            make(folder, model)


if __name__ == "__main__":
    main()
