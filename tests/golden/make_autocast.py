#!/usr/bin/env python3
"""Measures how far PyTorch's autocast in bf16 and fp16 is from float64 on the golden models: autocast.json of each folder.

    venv/bin/python tests/golden/make_autocast.py    (the environment of make_golden.py)

float32 weights, torch.autocast("cpu", bfloat16 or float16), the batches and the optimizer of make_golden.py. The published models are
used as they are: what autocast leaves in float32 (norms, softmax, the residual stream) stays in float32. In fp16 the loss is multiplied
by 65536 and the gradients are divided by it.
"""

import json
import math
import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import make_golden

loss_in_float = make_golden.loss_of
HALVES = {"bf16": (torch.bfloat16, 1.0), "fp16": (torch.float16, 65536.0)}  # and the loss scale


class ScaledGradient(torch.autograd.Function):
    """The loss as it is, with a gradient of `scale` in place of one."""

    @staticmethod
    def forward(context, loss, scale):
        context.scale = scale
        return loss.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.scale, None


# A context for each loss: autocast keeps the weights that it has rounded until its context ends, updates or not.
def loss_in(half):
    dtype, scale = HALVES[half]

    def loss_of(model, ids, targets):
        with torch.autocast("cpu", dtype=dtype):
            loss = loss_in_float(model, ids, targets)
        return ScaledGradient.apply(loss, scale)

    return loss_of


def load(folder, half):
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    scale = HALVES[half][1]
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient / scale)
    return model


def length(tensors):
    return math.sqrt(sum(t.pow(2).sum().item() for t in tensors))


def relative(found, exact):
    return [abs(a - b) / abs(b) for a, b in zip(found, exact)]


def measure(folder, half, expected, clip_norm):
    make_golden.loss_of = loss_in(half)
    ids, targets = expected["ids"].long(), expected["targets"].long()
    model = load(folder, half)
    make_golden.loss_of(model, ids[0], targets[0]).backward()
    gradients = {n: p.grad.double() for n, p in model.named_parameters()}
    losses, norms, _ = make_golden.train(load(folder, half), ids, targets, clip_norm)
    exact = {n: expected["gradient/" + n] for n in gradients}
    assert len(losses) == make_golden.STEPS
    return {
        "gradients": length(gradients[n] - exact[n] for n in exact) / length(exact.values()),
        "losses": relative(losses, expected["losses"].tolist()),
        "grad_norms": relative(norms, expected["grad_norms"].tolist()),
    }


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).resolve().parent
    for name in ("gpt2", "llama_untied", "llama_tied"):
        expected = load_file(here / name / "expected.safetensors")
        with safe_open(here / name / "expected.safetensors", "pt") as file:
            clip_norm = float(file.metadata()["clip_norm"])
        out = {"torch": torch.__version__}
        out.update({half: measure(here / name, half, expected, clip_norm) for half in HALVES})
        (here / name / "autocast.json").write_text(json.dumps(out, indent=1) + "\n")
        rms = lambda values: math.sqrt(sum(v * v for v in values) / len(values))
        for half in HALVES:
            own = out[half]
            print(name, half, "gradients", own["gradients"], "losses", rms(own["losses"]), "norms", rms(own["grad_norms"]))


if __name__ == "__main__":
    main()
