#!/usr/bin/env python3
"""Measures the gradient noise of golden models on the batches of expected.safetensors, with PyTorch in float64 (gradient_noise.json).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_gradient_noise.py

Nothing is trained: all twenty measurements are of the models' weights. A batch of four samples has halves of two. `even`: with every target
learned, by the equations of McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1, as they stand there: B_small = 2, B_big = 4, and the
mean of both halves' squares as |G_small|^2. `uneven`: masked as expected.safetensors has it, from the halves' gradients as vectors: their
product, and their distance in the batch's samples by tokens. `scale`: of averages over all measurements that keep 0.95 of those before.
"""

import json
import pathlib

import torch
from safetensors.torch import load_file

import make_golden

FOLDER = pathlib.Path(__file__).resolve().parent
DECAY = 0.95
HALF = make_golden.SAMPLES // 2


def gradient(model, ids, targets):
    model.zero_grad()
    make_golden.loss_of(model, ids, targets).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def even(model, ids, targets):
    small, big = HALF, make_golden.SAMPLES
    norms = [gradient(model, ids[half], targets[half]).square().sum().item() for half in (slice(0, HALF), slice(HALF, None))]
    of_small = sum(norms) / 2
    of_big = gradient(model, ids, targets).square().sum().item()
    return (big * of_big - small * of_small) / (big - small), (of_small - of_big) / (1 / small - 1 / big)


def uneven(model, ids, targets):
    first = gradient(model, ids[:HALF], targets[:HALF])
    second = gradient(model, ids[HALF:], targets[HALF:])
    tokens = [(targets[half] >= 0).sum().item() for half in (slice(0, HALF), slice(HALF, None))]
    shares = [count / sum(tokens) for count in tokens]
    return (first @ second).item(), make_golden.SAMPLES * shares[0] * shares[1] * (first - second).square().sum().item()


def measure(model, batch, vocab, kind):
    squares, variances, square, variance = [], [], 0.0, 0.0
    for ids, targets in zip(batch["ids"].long(), batch["targets"].long()):
        if kind is even:
            targets = torch.where(targets < 0, (ids + 1) % vocab, targets)
        one = kind(model, ids, targets)
        squares.append(one[0])
        variances.append(one[1])
        square = DECAY * square + (1 - DECAY) * one[0]
        variance = DECAY * variance + (1 - DECAY) * one[1]
    return dict(square=squares, variance=variances, scale=variance / square)


def main():
    out = dict(decay=DECAY)
    for folder, model, _ in make_golden.open_models(FOLDER):
        batch = load_file(folder / "expected.safetensors")
        vocab = model.config.vocab_size
        out[folder.name] = {kind.__name__: measure(model, batch, vocab, kind) for kind in (even, uneven)}
        print(folder.name, {name: found["scale"] for name, found in out[folder.name].items()})
    (FOLDER / "gradient_noise.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
