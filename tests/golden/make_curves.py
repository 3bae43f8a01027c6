#!/usr/bin/env python3
"""Loss curves of two reference runs of every optimizer (curves.json), by PyTorch in float64.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_curves.py

Each run is 100 steps of a golden model from the weights in its folder, on a text of that model's, in order and again from its beginning. AdamW
and SGD are PyTorch's, and Muon with its iterations in float64; the others are those of make_optimizers.py, written from their papers. The two
runs of an optimizer differ in the model's family, the text, the schedule and in whether gradients are clipped.

How far a run in other arithmetic may be from such a curve is measured here too, on the same steps (largest relative difference of a step's loss):
`float32`, of PyTorch in float32, and `rounding`, of float64 from weights that are each off by a relative 1e-15. Needs the folders that
make_golden.py wrote.
"""

import json
import math
import pathlib

import torch

import make_golden
import make_optimizers
from make_golden import SAMPLES, TOKENS

STEPS, WARMUP, WINDOWS = 100, 8, 100
ADAMW = dict(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
OF_PAPERS = {name: {key: value for key, value in settings.items() if key != "learning_rate"}
             for name, settings in make_optimizers.SETTINGS.items()}


def cosine(x, low):
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * x))


def linear(x, low):
    return low + (1 - low) * (1 - x)


def behind_warmup(shape):
    """A schedule of the way x from the warm-up's end to the last update."""
    return lambda update: min(1.0, update / WARMUP) if update <= WARMUP else shape((update - WARMUP) / (STEPS - WARMUP))


def inverse_sqrt(update):
    return min(1.0, update / WARMUP) if update <= WARMUP else math.sqrt(WARMUP / update)


def wsd(update):
    """Level until the last 30 updates, which fall in a line to a tenth."""
    return min(1.0, update / WARMUP, 1.0 if update <= STEPS - 30 else linear((update - STEPS + 30) / 30, 0.1))


SCHEDULES = {
    "cosine": (dict(type="cosine", warmup=WARMUP, min_ratio=0.1), behind_warmup(lambda x: cosine(x, 0.1))),
    "linear": (dict(type="linear", warmup=WARMUP, min_ratio=0.0), behind_warmup(lambda x: linear(x, 0.0))),
    "inverse_sqrt": (dict(type="inverse_sqrt", warmup=WARMUP, min_ratio=0.0), inverse_sqrt),
    "wsd": (dict(type="wsd", warmup=WARMUP, min_ratio=0.1, decay_steps=30, decay_shape="linear"), wsd),
    "constant": (dict(type="constant", warmup=WARMUP, min_ratio=0.0), lambda update: min(1.0, update / WARMUP)),
}

# (optimizer, its settings' name, model, schedule, peak, clip norm; none: 0)
RUNS = [
    ("adamw", "adamw", "gpt2", "cosine", 3e-3, 1.0),
    ("adamw", "adamw", "llama_untied", "wsd", 1e-2, 0.0),
    ("sgd", "sgd_momentum", "gpt2", "linear", 0.05, 1.0),
    ("sgd", "sgd_nesterov", "llama_untied", "cosine", 0.02, 0.0),
    ("lion", "lion", "gpt2", "wsd", 1e-3, 0.0),
    ("lion", "lion", "llama_untied", "inverse_sqrt", 3e-3, 1.0),
    ("lamb", "lamb", "gpt2", "inverse_sqrt", 2e-2, 1.0),
    ("lamb", "lamb", "llama_untied", "linear", 2e-2, 0.0),
    ("lars", "lars", "gpt2", "constant", 0.3, 1.0),
    ("lars", "lars", "llama_untied", "cosine", 1.0, 0.0),
    ("ademamix", "ademamix", "gpt2", "cosine", 2e-3, 0.0),
    ("ademamix", "ademamix", "llama_untied", "wsd", 3e-3, 1.0),
    ("muon", "muon", "gpt2", "cosine", 5e-3, 1.0),
    ("muon", "muon_original", "llama_untied", "wsd", 2e-2, 0.0),
    ("adafactor", "adafactor", "gpt2", "inverse_sqrt", 5e-2, 0.0),
    ("adafactor", "adafactor_clipped", "llama_untied", "cosine", 5e-2, 1.0),
]


def make_text(vocab, seed):
    """Tokens of which three in four follow from the two before."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, vocab, (WINDOWS * TOKENS + 1,), generator=generator).tolist()
    follows = (torch.rand(len(noise), generator=generator) < 0.75).tolist()
    text = noise[:2]
    for at in range(2, len(noise)):
        text.append((3 * text[-1] + text[-2] + 1) % vocab if follows[at] else noise[at])
    return text


def batch_of(text, step):
    """Sample s of step t is window 4t + s of the text, counted round and round; its targets are the tokens one further."""
    begins = [(step * SAMPLES + sample) % WINDOWS * TOKENS for sample in range(SAMPLES)]
    rows = torch.tensor([text[begin:begin + TOKENS + 1] for begin in begins])
    return rows[:, :-1], rows[:, 1:]


def make_adamw(model, beta1, beta2, epsilon, weight_decay):
    return make_optimizers.Published(model, lambda groups: torch.optim.AdamW(
        groups, lr=0.0, betas=(beta1, beta2), eps=epsilon, weight_decay=weight_decay, foreach=False))


def losses_of(model, name, text, rate_of, clip_norm):
    optimizer = make_adamw(model, **ADAMW) if name == "adamw" else make_optimizers.make_optimizer(name, model)
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss = make_golden.loss_of(model, *batch_of(text, step))
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in model.parameters()))
        if 0 < clip_norm < norm:
            for p in model.parameters():
                p.grad.mul_(clip_norm / norm)
        optimizer.step(rate_of(step + 1))
        losses.append(loss.item())
    return losses


def fill_near(model, weights):
    generator = torch.Generator().manual_seed(1)
    make_golden.fill_from(model, weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-15 * torch.sign(torch.randn(parameter.shape, generator=generator, dtype=torch.float64)))


def largest_difference(losses, others):
    return max(abs(a - b) / a for a, b in zip(losses, others))


def main():
    here = pathlib.Path(__file__).resolve().parent
    models = {folder.name: (model, weights) for folder, model, weights in make_golden.open_models(here)}
    texts = {name: make_text(model.config.vocab_size, seed) for seed, (name, (model, _)) in enumerate(models.items(), start=11)}
    runs = []
    for optimizer, name, model_name, schedule, peak, clip_norm in RUNS:
        model, weights = models[model_name]
        described, shape = SCHEDULES[schedule]
        run = lambda: losses_of(model, name, texts[model_name], lambda update: peak * shape(update), clip_norm)
        make_golden.fill_from(model.double(), weights)
        losses = run()
        fill_near(model, weights)
        rounding = largest_difference(losses, run())
        make_golden.fill_from(model.float(), weights)
        float32 = largest_difference(losses, run())
        model.double()
        settings = ADAMW if name == "adamw" else OF_PAPERS[name]
        runs.append(dict(optimizer=optimizer, model=model_name, settings=dict(learning_rate=peak) | settings, schedule=described,
                         clip_norm=clip_norm, rounding=rounding, float32=float32, losses=losses))
        print(f"{name} {model_name} {schedule}: {losses[0]:.3f} -> {losses[-1]:.3f}, rounding {rounding:.1e}, float32 {float32:.1e}")
    lines = ",\n".join(json.dumps(run) for run in runs)
    (here / "curves.json").write_text(f'{{"texts": {json.dumps(texts)},\n"runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
