#!/usr/bin/env python3
"""Adds to golden models the losses of twenty steps of every optimizer but AdamW, in float64 (optimizers.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors lion-pytorch timm
    venv/bin/python tests/golden/make_optimizers.py

SGD is PyTorch's. The others are written here from their papers; Lion, LAMB, LARS, Muon and Adafactor are checked to agree with the
implementations of lion-pytorch, timm and PyTorch, where those compute the same. PyTorch's Muon rounds to bfloat16 within Newton-Schulz: there it is given the
float64 form of here, which applies the iterations' polynomial to singular values. The batches are those of expected.safetensors. Needs the folders that make_golden.py
wrote.
"""

import math
import pathlib

import torch
from safetensors.torch import load_file, save_file

import make_golden
from make_golden import STEPS

# Weight decay on matrices only. Learning rates warm up and fall as those of make_golden.OPTIMIZER do.
SETTINGS = {
    "sgd_momentum": dict(learning_rate=0.05, momentum=0.9, nesterov=0, weight_decay=0.1),
    "sgd_nesterov": dict(learning_rate=0.05, momentum=0.9, nesterov=1, weight_decay=0.1),
    "lion": dict(learning_rate=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1),
    "lamb": dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-6, weight_decay=0.1),
    "lars": dict(learning_rate=1.0, momentum=0.9, trust_coefficient=0.01, weight_decay=0.1),
    "muon": dict(learning_rate=5e-3, momentum=0.95, nesterov=1, weight_decay=0.1, original=0, adamw_rate=0.5, beta1=0.9, beta2=0.95,
                 epsilon=1e-8),
    "muon_original": dict(learning_rate=2e-2, momentum=0.9, nesterov=0, weight_decay=0.1, original=1, adamw_rate=0.1, beta1=0.8, beta2=0.9,
                          epsilon=1e-6),
    "adafactor": dict(learning_rate=2e-2, beta2_exponent=0.8, clip_threshold=1.0, smallest_scale=1e-3, weight_decay=0.1),
    # Directions are clipped, and all tensors but the norms step as if they were larger than they are.
    "adafactor_clipped": dict(learning_rate=5e-2, beta2_exponent=0.5, clip_threshold=0.6, smallest_scale=0.1, weight_decay=0.05),
    "ademamix": dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, alpha=5.0, beta3=0.999, slow_warmup=15),
}


def is_hidden_map(name, parameter):
    return parameter.dim() == 2 and (".h." in name or ".layers." in name)


def tensors_of(model):
    """(name, values, gradient, whether it decays) of every tensor as it is meant: GPT-2's fused query, key and value are three."""
    for name, parameter in model.named_parameters():
        if ".attn.c_attn." in name:
            yield from ((name, part, lambda p=parameter, i=i: p.grad.chunk(3, dim=-1)[i], parameter.dim() >= 2)
                        for i, part in enumerate(parameter.data.chunk(3, dim=-1)))
        else:
            yield name, parameter.data, lambda p=parameter: p.grad, parameter.dim() >= 2


class FromPaper:
    """A rule of one tensor: step(values, gradient, state, rate, decay, update)."""

    def __init__(self, model, rule, settings):
        # Muon's rule asks which tensor it has; GPT-2 stores linear maps [in, out].
        self.tensors = [(values, gradient, decays, dict(is_hidden_map=is_hidden_map(name, values), outputs_first=".h." not in name))
                        for name, values, gradient, decays in tensors_of(model)]
        self.rule, self.settings, self.update = rule, settings, 0

    def step(self, rate):
        self.update += 1
        for values, gradient, decays, state in self.tensors:
            self.rule(values, gradient(), state, rate, decays, self.update, **self.settings)


def mean(state, name, values, beta):
    """The running mean of this name, with `values` taken in."""
    state[name] = beta * state.get(name, torch.zeros_like(values)) + (1 - beta) * values
    return state[name]


def lion(p, g, state, rate, decays, update, beta1, beta2, weight_decay):
    """Chen et al. 2023, algorithm 2."""
    m = state.get("m", torch.zeros_like(p))
    direction = torch.sign(beta1 * m + (1 - beta1) * g)
    p.sub_(rate * (direction + (weight_decay if decays else 0.0) * p))
    mean(state, "m", g, beta2)


def lamb(p, g, state, rate, decays, update, beta1, beta2, epsilon, weight_decay):
    """You et al. 2020, algorithm 2, with the identity for its function of the norm."""
    m = mean(state, "m", g, beta1) / (1 - beta1**update)
    v = mean(state, "v", g * g, beta2) / (1 - beta2**update)
    direction = m / (v.sqrt() + epsilon)
    ratio = 1.0
    if decays:
        direction = direction + weight_decay * p
        ratio = p.norm() / direction.norm() if p.norm() > 0 and direction.norm() > 0 else 1.0
    p.sub_(rate * ratio * direction)


def lars(p, g, state, rate, decays, update, momentum, trust_coefficient, weight_decay):
    """You et al. 2017, algorithm 1."""
    ratio = 1.0
    if decays:
        if p.norm() > 0 and g.norm() > 0:
            ratio = trust_coefficient * p.norm() / (g.norm() + weight_decay * p.norm())
        g = g + weight_decay * p
    state["v"] = momentum * state.get("v", torch.zeros_like(p)) + rate * ratio * g
    p.sub_(state["v"])


def ademamix(p, g, state, rate, decays, update, beta1, beta2, epsilon, weight_decay, alpha, beta3, slow_warmup):
    """Pagliardini et al. 2024, algorithm 1 with the schedulers of its section 3."""
    part = update / slow_warmup
    weight = min(part * alpha, alpha)
    slow_beta = beta3
    if part < 1:
        slow_beta = min(math.exp(math.log(beta1) * math.log(beta3) / ((1 - part) * math.log(beta3) + part * math.log(beta1))), beta3)
    fast = mean(state, "m1", g, beta1) / (1 - beta1**update)
    slow = mean(state, "m2", g, slow_beta)
    v = mean(state, "v", g * g, beta2) / (1 - beta2**update)
    p.sub_(rate * ((fast + weight * slow) / (v.sqrt() + epsilon) + (weight_decay if decays else 0.0) * p))


def polynomial_of_singular_values(matrix):
    """Five Newton-Schulz iterations of Jordan's quintic (2024), X <- a X + b X X' X + c X X' X X' X, by the singular values of X."""
    a, b, c = 3.4445, -4.7750, 2.0315
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm().clamp(min=1e-7)
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    return left @ torch.diag(values) @ right


def muon(p, g, state, rate, decays, update, momentum, nesterov, weight_decay, original, adamw_rate, beta1, beta2, epsilon):
    """Jordan et al. 2024, with decay and the other scale by Liu et al. 2025, section 2; AdamW for what is no hidden map."""
    decay = weight_decay if decays else 0.0
    if not state["is_hidden_map"]:
        m = mean(state, "m", g, beta1) / (1 - beta1**update)
        v = mean(state, "v", g * g, beta2) / (1 - beta2**update)
        p.sub_(adamw_rate * rate * (m / (v.sqrt() + epsilon) + decay * p))
        return
    state["v"] = momentum * state.get("v", torch.zeros_like(p)) + g
    direction = g + momentum * state["v"] if nesterov else state["v"]
    outputs, inputs = p.shape if state["outputs_first"] else reversed(p.shape)
    length = math.sqrt(max(1.0, outputs / inputs)) if original else 0.2 * math.sqrt(max(outputs, inputs))
    p.sub_(rate * (length * polynomial_of_singular_values(direction) + decay * p))


def adafactor(p, g, state, rate, decays, update, beta2_exponent, clip_threshold, smallest_scale, weight_decay):
    """Shazeer and Stern 2018, algorithms 4 and 5, with the rate of the schedule and decoupled decay; no square here is near their ε1."""
    beta = 1 - update**-beta2_exponent
    if p.dim() == 2:
        rows, columns = mean(state, "r", (g * g).mean(1), beta), mean(state, "c", (g * g).mean(0), beta)
        v = torch.outer(rows, columns) / rows.mean()
    else:
        v = mean(state, "v", g * g, beta)
    u = torch.where(g == 0, 0.0, g / v.sqrt())
    root_mean_square = lambda x: x.pow(2).mean().sqrt().item()
    length = max(smallest_scale, root_mean_square(p)) / max(1.0, root_mean_square(u) / clip_threshold)
    p.sub_(rate * (length * u + (weight_decay if decays else 0.0) * p))


class PublishedMuon:
    """PyTorch's, but for the type of its iterations, and its AdamW for the rest."""

    def __init__(self, model, s):
        import torch.optim._muon as published
        published._zeropower_via_newtonschulz = lambda matrix, *_: polynomial_of_singular_values(matrix)
        named = list(model.named_parameters())
        maps = [p for name, p in named if is_hidden_map(name, p)]
        rest = [p for name, p in named if not is_hidden_map(name, p)]
        self.adamw_rate = s["adamw_rate"]
        self.muon = torch.optim.Muon(maps, lr=1.0, weight_decay=s["weight_decay"], momentum=s["momentum"], nesterov=bool(s["nesterov"]),
                                     adjust_lr_fn="original" if s["original"] else "match_rms_adamw")
        groups = [dict(params=[p for p in rest if p.dim() >= 2], weight_decay=s["weight_decay"]),
                  dict(params=[p for p in rest if p.dim() < 2], weight_decay=0.0)]
        self.adamw = torch.optim.AdamW(groups, lr=1.0, betas=(s["beta1"], s["beta2"]), eps=s["epsilon"])

    def step(self, rate):
        for optimizer, factor in ((self.muon, 1.0), (self.adamw, self.adamw_rate)):
            for group in optimizer.param_groups:
                group["lr"] = factor * rate
            optimizer.step()


class Published:
    """An optimizer of a library, with decay on matrices only."""

    def __init__(self, model, make):
        groups = [dict(params=[p for p in model.parameters() if p.dim() >= 2]),
                  dict(params=[p for p in model.parameters() if p.dim() < 2], weight_decay=0.0)]
        self.optimizer = make(groups)

    def step(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()


def make_optimizer(name, model):
    settings = {key: value for key, value in SETTINGS[name].items() if key != "learning_rate"}
    if name.startswith("sgd"):
        return Published(model, lambda groups: torch.optim.SGD(
            groups, lr=0.0, momentum=settings["momentum"], nesterov=bool(settings["nesterov"]), weight_decay=settings["weight_decay"]))
    return FromPaper(model, globals()[name.removesuffix("_original").removesuffix("_clipped")], settings)


def make_published(name, model):
    """The library's, or None."""
    s = SETTINGS[name]
    if name == "lion":
        from lion_pytorch import Lion
        return Published(model, lambda groups: Lion(groups, lr=1.0, betas=(s["beta1"], s["beta2"]), weight_decay=s["weight_decay"]))
    if name == "lamb":
        from timm.optim import Lamb
        return Published(model, lambda groups: Lamb(groups, lr=1.0, betas=(s["beta1"], s["beta2"]), eps=s["epsilon"],
                                                    weight_decay=s["weight_decay"], max_grad_norm=None))
    if name.startswith("muon"):
        return PublishedMuon(model, s)
    if name == "adafactor":  # it clips to 1 or more; its rate falls as 1/sqrt(t) where that is below the given one: not within these steps
        return Published(model, lambda groups: torch.optim.Adafactor(
            groups, lr=1.0, beta2_decay=-s["beta2_exponent"], eps=(1e-30, s["smallest_scale"]), d=s["clip_threshold"],
            weight_decay=s["weight_decay"]))
    if name == "lars":  # its rate is outside of the momentum: the same where the rate stays
        from timm.optim import Lars
        return Published(model, lambda groups: Lars(groups, lr=1.0, momentum=s["momentum"], weight_decay=s["weight_decay"],
                                                    trust_coeff=s["trust_coefficient"], eps=0.0))
    return None


def train(model, optimizer, ids, targets, clip_norm, rate_of):
    losses, norms = [], []
    for step in range(STEPS):
        model.zero_grad()
        loss = make_golden.loss_of(model, ids[step], targets[step])
        loss.backward()
        norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in model.parameters()))
        if norm > clip_norm:
            for p in model.parameters():
                p.grad.mul_(clip_norm / norm)
        optimizer.step(rate_of(step + 1))
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms


def make(folder, model):
    weights = load_file(folder / "model.safetensors")
    batch = load_file(folder / "expected.safetensors")
    ids, targets = batch["ids"].long(), batch["targets"].long()

    def run(make_one, clip_norm, rate_of):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name].double())
        return train(model, make_one(), ids, targets, clip_norm, rate_of)

    tensors, metadata = dict(ids=batch["ids"], targets=batch["targets"]), {}
    for name, settings in SETTINGS.items():
        scale = settings["learning_rate"] / make_golden.OPTIMIZER["learning_rate"]
        rate_of = lambda update: scale * make_golden.learning_rate(update)
        # Their tensors are those of the file, which for GPT-2 are fused.
        published = make_published(name, model) if folder.name == "llama_untied" or name == "lion" else None
        if published is not None:
            steady = lambda update: settings["learning_rate"]
            ours = run(lambda: make_optimizer(name, model), float("inf"), steady)[0]
            theirs = run(lambda: make_published(name, model), float("inf"), steady)[0]
            difference = max(abs(a - b) / b for a, b in zip(ours, theirs))
            print(folder.name, name, "differs from the published one by", difference)
            assert difference < 1e-6, difference
        norms = run(lambda: make_optimizer(name, model), float("inf"), rate_of)[1]
        clip_norm = sorted(norms)[STEPS // 2]
        losses, norms = run(lambda: make_optimizer(name, model), clip_norm, rate_of)
        tensors[name + "/losses"] = torch.tensor(losses, dtype=torch.float64)
        tensors[name + "/grad_norms"] = torch.tensor(norms, dtype=torch.float64)
        tensors[name + "/learning_rates"] = torch.tensor([rate_of(step + 1) for step in range(STEPS)], dtype=torch.float64)
        for key, value in settings.items():
            metadata[name + "/" + key] = repr(float(value))
        metadata[name + "/clip_norm"] = repr(clip_norm)
        metadata[name + "/warmup"] = repr(float(make_golden.OPTIMIZER["warmup"]))
        metadata[name + "/min_ratio"] = repr(float(make_golden.OPTIMIZER["min_ratio"]))
        print(folder.name, name, "loss", losses[0], "->", losses[-1], "clip", clip_norm)
    save_file(tensors, folder / "optimizers.safetensors", metadata)


def main():
    for folder, model, _ in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        make(folder, model)


if __name__ == "__main__":
    main()
