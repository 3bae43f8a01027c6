#!/usr/bin/env python3
"""Adds to golden models what PyTorch computes in float64 where attention stays within documents (documents.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_documents.py

The batch is the first one of expected.safetensors, cut into documents. No mask is involved, nor positions that are given: each document
goes through the model by itself, which is what attention within documents means. Needs the folders that make_golden.py wrote.
"""

import pathlib

import torch
from safetensors.torch import load_file, save_file

import make_golden

# The first tokens of the documents of each of the four samples: one alone, one of a token at the end, a few, a document each.
STARTS = [[0], [0, 15], [0, 3, 4, 11], list(range(16))]


def make(folder, model):
    batch = load_file(folder / "expected.safetensors")
    ids, targets = batch["ids"][0].long(), batch["targets"][0].long()
    samples, tokens = ids.shape
    loss = torch.zeros((), dtype=torch.float64)
    document_start = torch.zeros((samples, tokens), dtype=torch.int32)
    for sample in range(samples):
        ends = STARTS[sample][1:] + [tokens]
        for start, end in zip(STARTS[sample], ends):
            document_start[sample, start:end] = start
            logits = model(input_ids=ids[sample : sample + 1, start:end], use_cache=False).logits[0]
            wanted = targets[sample, start:end]
            chosen = torch.log_softmax(logits, -1).gather(1, wanted.clamp(min=0)[:, None])[:, 0]
            loss = loss - chosen[wanted >= 0].sum()
    loss = loss / (targets >= 0).sum()
    loss.backward()
    tensors = {"gradient/" + name: p.grad.clone().contiguous() for name, p in model.named_parameters()}
    tensors["document_start"] = document_start
    tensors["loss"] = loss.detach().reshape(1)
    across = make_golden.loss_of(model, ids, targets).item()
    assert abs(across - loss.item()) > 1e-3, (across, loss.item())
    save_file(tensors, folder / "documents.safetensors")
    print(folder.name, "within", loss.item(), "across", across)


def main():
    for folder, model, _ in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        make(folder, model)


if __name__ == "__main__":
    main()
