#!/usr/bin/env python3
"""What PyTorch computes in float64 of smoothed labels and of PaLM's z-loss: of a few rows of logits by themselves (loss_shapes.json), and of
twenty AdamW steps of golden models (shaped.safetensors).

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_loss_shapes.py

What is optimised is F.cross_entropy(label_smoothing) plus z_loss times the mean of logsumexp squared; the losses noted beside it are
cross-entropies without either. The models' batches are those of expected.safetensors: make_golden.py must have written it.
"""

import json
import math
import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import Gemma2Config, Gemma2ForCausalLM
from transformers.models.gemma2 import modeling_gemma2

import make_golden

FOLDER = pathlib.Path(__file__).resolve().parent
SHAPES = [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.3, 5e-2)]
OF_MODELS = (0.1, 1e-2)


def objective(logits, targets, smoothing, z_loss):
    kept = targets >= 0
    of_rows = cross_entropy(logits[kept], targets[kept], label_smoothing=smoothing, reduction="sum")
    return of_rows + z_loss * torch.logsumexp(logits[kept], -1).pow(2).sum()


def rows():
    generator = torch.Generator().manual_seed(21)
    logits = torch.randn(7, 13, dtype=torch.float64, generator=generator) * 3 + 1
    targets = torch.tensor([3, 12, -1, 0, 5, -1, 7])
    cases = []
    for smoothing, z_loss in SHAPES:
        leaf = logits.clone().requires_grad_(True)
        objective(leaf, targets, smoothing, z_loss).backward()
        cases.append(dict(label_smoothing=smoothing, z_loss=z_loss, gradient=leaf.grad.flatten().tolist()))
    loss = objective(logits, targets, 0.0, 0.0).item()
    out = dict(shape=list(logits.shape), logits=logits.flatten().tolist(), targets=targets.tolist(), loss=loss, cases=cases)
    (FOLDER / "loss_shapes.json").write_text(json.dumps(out, indent=1) + "\n")


def train(model, ids, targets, clip_norm):
    """make_golden.train() of the objective, which notes the plain losses."""
    plain = []

    def loss_of(model, ids, targets):
        logits = model(input_ids=ids, use_cache=False).logits
        flat, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        count = (wanted >= 0).sum()
        plain.append((objective(flat, wanted, 0.0, 0.0) / count).item())
        return objective(flat, wanted, *OF_MODELS) / count

    usual, make_golden.loss_of = make_golden.loss_of, loss_of
    try:
        _, norms, rates = make_golden.train(model, ids, targets, clip_norm)
    finally:
        make_golden.loss_of = usual
    return plain, norms, rates


def of_model(folder, model):
    weights = load_file(folder / "model.safetensors")

    def restore():
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name].double())

    batch = load_file(folder / "expected.safetensors")
    ids, targets = batch["ids"].long(), batch["targets"].long()
    restore()
    norms = train(model, ids, targets, clip_norm=float("inf"))[1]
    clip_norm = sorted(norms)[make_golden.STEPS // 2]
    restore()
    losses, norms, rates = train(model, ids, targets, clip_norm)
    assert math.isclose(losses[0], batch["losses"][0].item(), rel_tol=1e-12)  # plain, of the same weights
    assert abs(norms[0] / batch["grad_norms"][0].item() - 1) > 1e-2
    metadata = {key: repr(float(value)) for key, value in make_golden.OPTIMIZER.items()}
    metadata["clip_norm"] = repr(clip_norm)
    metadata["label_smoothing"], metadata["z_loss"] = (repr(value) for value in OF_MODELS)
    tensors = dict(ids=batch["ids"], targets=batch["targets"], losses=torch.tensor(losses, dtype=torch.float64),
                   grad_norms=torch.tensor(norms, dtype=torch.float64), learning_rates=torch.tensor(rates, dtype=torch.float64))
    save_file(tensors, folder / "shaped.safetensors", metadata)
    print(folder.name, "loss", losses[0], "->", losses[-1], "clip", clip_norm)


def open_gemma2(folder):
    """As make_golden.make_gemma() has it."""
    modeling_gemma2.Gemma2RMSNorm.forward = make_golden.gemma_norm_forward
    modeling_gemma2.Gemma2RotaryEmbedding.forward = make_golden.gemma_rotary_forward
    modeling_gemma2.eager_attention_forward = make_golden.capped_attention
    config = json.loads((folder / "config.json").read_text())
    return Gemma2ForCausalLM(Gemma2Config(**config, attn_implementation="eager")).double()


def main():
    rows()
    for folder, model, _ in make_golden.open_models(FOLDER):
        if folder.name == "llama_untied":
            of_model(folder, model)
    of_model(FOLDER / "gemma2", open_gemma2(FOLDER / "gemma2"))


if __name__ == "__main__":
    main()
