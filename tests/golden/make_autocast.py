#!/usr/bin/env python3
"""Measures how far PyTorch's bf16 autocast is from float64 on the golden models: autocast.json of each folder.

    venv/bin/python tests/golden/make_autocast.py    (the environment of make_golden.py)

float32 weights, torch.autocast("cpu", bfloat16), the batches and the optimizer of make_golden.py. The published models are used as they
are: what autocast leaves in float32 (norms, softmax, the residual stream) stays in float32.
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


# A context for each loss: autocast keeps the weights that it has rounded until its context ends, updates or not.
def loss_of(model, ids, targets):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_in_float(model, ids, targets)


def relative(found, exact):
    return [abs(a - b) / abs(b) for a, b in zip(found, exact)]


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    make_golden.loss_of = loss_of
    here = pathlib.Path(__file__).resolve().parent
    for folder in ("gpt2", "llama_untied", "llama_tied"):
        expected = load_file(here / folder / "expected.safetensors")
        with safe_open(here / folder / "expected.safetensors", "pt") as file:
            clip_norm = float(file.metadata()["clip_norm"])
        ids, targets = expected["ids"].long(), expected["targets"].long()
        load = lambda: AutoModelForCausalLM.from_pretrained(here / folder, torch_dtype=torch.float32)
        model = load()
        loss_of(model, ids[0], targets[0]).backward()
        gradients = {n: p.grad.double() for n, p in model.named_parameters()}
        losses, norms, _ = make_golden.train(load(), ids, targets, clip_norm)
        exact = {n: expected["gradient/" + n] for n in gradients}
        length = lambda tensors: math.sqrt(sum(t.pow(2).sum().item() for t in tensors))
        out = {
            "torch": torch.__version__,
            "gradients": length(gradients[n] - exact[n] for n in exact) / length(exact.values()),
            "losses": relative(losses, expected["losses"].tolist()),
            "grad_norms": relative(norms, expected["grad_norms"].tolist()),
        }
        assert len(out["losses"]) == make_golden.STEPS
        (here / folder / "autocast.json").write_text(json.dumps(out, indent=1) + "\n")
        rms = lambda values: math.sqrt(sum(v * v for v in values) / len(values))
        print(folder, "gradients", out["gradients"], "losses", rms(out["losses"]), "norms", rms(out["grad_norms"]))


if __name__ == "__main__":
    main()
