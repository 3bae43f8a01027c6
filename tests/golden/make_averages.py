#!/usr/bin/env python3
"""Adds to a golden model the exponential moving average of its weights behind twenty AdamW steps, as PyTorch's
torch.optim.swa_utils.AveragedModel has it in float64 (averages.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_averages.py

Batches and steps are those of expected.safetensors: make_golden.py must have written it.
"""

import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import make_golden

DECAY = 0.75  # short enough that twenty steps are many


class Averaged:
    """What train() asks of a model; its optimizer's steps are followed by the average's."""

    def __init__(self, model):
        self.model, self.average = model, AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        self.calls = 0

    def parameters(self):
        return self.model.parameters()

    def __call__(self, **arguments):
        if self.calls > 0:  # the step before has been made
            self.average.update_parameters(self.model)
        self.calls += 1
        return self.model(**arguments)


def main():
    for folder, model, _ in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        if folder.name != "llama_untied":
            continue
        weights = load_file(folder / "model.safetensors")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name].double())
        batch = load_file(folder / "expected.safetensors")
        with safe_open(folder / "expected.safetensors", "pt") as file:
            clip_norm = float(file.metadata()["clip_norm"])
        averaged = Averaged(model)
        losses = make_golden.train(averaged, batch["ids"].long(), batch["targets"].long(), clip_norm)[0]
        assert losses == batch["losses"].tolist()
        averaged.average.update_parameters(model)  # behind the last step
        assert int(averaged.average.n_averaged) == make_golden.STEPS
        tensors = {"average/" + name: p.detach().clone() for name, p in averaged.average.module.named_parameters()}
        assert all(not torch.equal(tensors["average/" + name], p) for name, p in model.named_parameters())
        save_file(tensors, folder / "averages.safetensors", {"decay": repr(DECAY)})
        print(folder.name, len(tensors), "averages")


if __name__ == "__main__":
    main()
