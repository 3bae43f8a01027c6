#!/usr/bin/env python3
"""Adds to golden models twenty steps of every optimizer with factors on the weight decay, in float64 (weight_decays.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors timm
    venv/bin/python tests/golden/make_weight_decays.py

Each tensor is a group of parameters of its own, with a decay of its own. AdamW and SGD are PyTorch's; the others are those of
make_optimizers.py, and LAMB and LARS are checked to agree with timm's, which leave out the ratio of norms where a group does not decay.
The factors are said here by the families' names, tensor by tensor; golden_optimizers.h says the same by patterns over ours. The batches
are those of expected.safetensors. Needs the folders that make_golden.py wrote.
"""

import math
import pathlib

import torch
from safetensors.torch import load_file, save_file

import make_golden
import make_optimizers

WEIGHT_DECAY = 0.4
SETTINGS = {"adamw": dict(learning_rate=3e-3, beta1=0.9, beta2=0.95, epsilon=1e-8)} | {
    name: make_optimizers.SETTINGS[name] for name in ("sgd_momentum", "lion", "lamb", "lars", "ademamix", "muon", "adafactor")}
SETTINGS = {name: settings | dict(weight_decay=WEIGHT_DECAY) for name, settings in SETTINGS.items()}
# In half the steps of make_optimizers.py: with this decay float32's roundings grow to 1e-5 in whole ones.
SETTINGS["lars"]["learning_rate"] = 0.5


def factor_of_gpt2(name, part, is_matrix):
    if ".attn.c_attn.weight" in name and part == 2:  # the values
        return 0.0
    if name == "transformer.wpe.weight":
        return 0.0
    if name == "transformer.ln_f.weight":
        return 1.5
    is_bias = name.endswith(".bias")
    if ".h.1." in name:
        return 3.0 if is_matrix or is_bias else 0.0
    if is_bias:
        return 2.0
    return 0.5 if is_matrix else 0.0


def factor_of_llama(name, part, is_matrix):
    if ".self_attn.v_proj." in name or name == "lm_head.weight":
        return 0.0
    if ".layers.1." in name:
        return 3.0
    if not is_matrix:
        return 1.0 if name == "model.norm.weight" else 2.0
    return 0.5


FACTORS = {"gpt2": factor_of_gpt2, "llama_untied": factor_of_llama}


def parts_of(model, factor_of):
    """(values, gradient, factor, name) of every tensor as it is meant: GPT-2's fused query, key and value are three."""
    before, part = None, 0
    for name, values, gradient, is_matrix in make_optimizers.tensors_of(model):
        part = part + 1 if name == before else 0
        before = name
        yield values, gradient, factor_of(name, part, is_matrix), name


class Published:
    """An optimizer of a library, with a group for each tensor."""

    def __init__(self, model, factor_of, make, weight_decay):
        self.tensors, groups = [], []
        for values, gradient, factor, _ in parts_of(model, factor_of):
            leaf = torch.nn.Parameter(values)  # the same memory
            self.tensors.append((leaf, gradient))
            groups.append(dict(params=[leaf], weight_decay=factor * weight_decay))
        self.optimizer = make(groups)

    def step(self, rate):
        for leaf, gradient in self.tensors:
            leaf.grad = gradient()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()


class FromPaper(make_optimizers.FromPaper):
    def __init__(self, model, factor_of, rule, settings):
        super().__init__(model, rule, settings)
        factors = [factor for _, _, factor, _ in parts_of(model, factor_of)]
        assert len(factors) == len(self.tensors)
        self.tensors = [(values, gradient, factor, state) for (values, gradient, _, state), factor in zip(self.tensors, factors)]

    def step(self, rate):
        self.update += 1
        for values, gradient, factor, state in self.tensors:
            settings = self.settings | dict(weight_decay=factor * self.settings["weight_decay"])
            self.rule(values, gradient(), state, rate, factor > 0, self.update, **settings)


def make_published(name, model, factor_of):
    """The library's, or None."""
    s = SETTINGS[name]
    makers = {
        "adamw": lambda groups: torch.optim.AdamW(groups, lr=1.0, betas=(s["beta1"], s["beta2"]), eps=s["epsilon"], foreach=False),
        "sgd_momentum": lambda groups: torch.optim.SGD(groups, lr=1.0, momentum=s["momentum"], foreach=False),
    }
    if name in ("lamb", "lars"):
        from timm.optim import Lamb, Lars
        makers["lamb"] = lambda groups: Lamb(groups, lr=1.0, betas=(s["beta1"], s["beta2"]), eps=s["epsilon"], max_grad_norm=None)
        makers["lars"] = lambda groups: Lars(groups, lr=1.0, momentum=s["momentum"], trust_coeff=s["trust_coefficient"], eps=0.0)
    return Published(model, factor_of, makers[name], s["weight_decay"]) if name in makers else None


def make_optimizer(name, model, factor_of):
    if name in ("adamw", "sgd_momentum"):
        return make_published(name, model, factor_of)
    settings = {key: value for key, value in SETTINGS[name].items() if key != "learning_rate"}
    return FromPaper(model, factor_of, getattr(make_optimizers, name), settings)


def make(folder, model):
    factor_of = FACTORS[folder.name]
    weights = load_file(folder / "model.safetensors")
    batch = load_file(folder / "expected.safetensors")
    ids, targets = batch["ids"].long(), batch["targets"].long()
    for _, _, factor, name in parts_of(model, factor_of):
        print(folder.name, name, factor)

    def run(make_one, clip_norm, rate_of):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name].double())
        return make_optimizers.train(model, make_one(), ids, targets, clip_norm, rate_of)

    tensors, metadata = dict(ids=batch["ids"], targets=batch["targets"]), {}
    for name, settings in SETTINGS.items():
        scale = settings["learning_rate"] / make_golden.OPTIMIZER["learning_rate"]
        rate_of = lambda update: scale * make_golden.learning_rate(update)
        if name in ("lamb", "lars"):
            steady = lambda update: settings["learning_rate"]  # timm's LARS has its rate outside of the momentum
            ours = run(lambda: make_optimizer(name, model, factor_of), math.inf, steady)[0]
            theirs = run(lambda: make_published(name, model, factor_of), math.inf, steady)[0]
            difference = max(abs(a - b) / b for a, b in zip(ours, theirs))
            print(folder.name, name, "differs from the published one by", difference)
            assert difference < 1e-6, difference
        norms = run(lambda: make_optimizer(name, model, factor_of), math.inf, rate_of)[1]
        clip_norm = sorted(norms)[make_golden.STEPS // 2]
        losses, norms = run(lambda: make_optimizer(name, model, factor_of), clip_norm, rate_of)
        tensors[name + "/losses"] = torch.tensor(losses, dtype=torch.float64)
        tensors[name + "/grad_norms"] = torch.tensor(norms, dtype=torch.float64)
        tensors[name + "/learning_rates"] = torch.tensor([rate_of(step + 1) for step in range(make_golden.STEPS)], dtype=torch.float64)
        for key, value in (settings | dict(clip_norm=clip_norm)).items():
            metadata[name + "/" + key] = repr(float(value))
        for key in ("warmup", "min_ratio"):
            metadata[name + "/" + key] = repr(float(make_golden.OPTIMIZER[key]))
        print(folder.name, name, "loss", losses[0], "->", losses[-1], "clip", clip_norm)
    save_file(tensors, folder / "weight_decays.safetensors", metadata)


def main():
    for folder, model, _ in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        make(folder, model)


if __name__ == "__main__":
    main()
