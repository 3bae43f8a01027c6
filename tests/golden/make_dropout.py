#!/usr/bin/env python3
"""Adds to golden models what PyTorch computes in float64 with dropout (dropout.safetensors) and, with peft, with dropout of adapters'
inputs too (dropout_lora.safetensors): the loss and the gradients of the first batch.

    python3 -m venv venv && venv/bin/pip install torch transformers peft safetensors xxhash numpy
    venv/bin/python tests/golden/make_dropout.py

The masks are made here, by Philox 4x32-10 as its paper has it (Salmon et al. 2011), keyed as DropoutMask in lib/backend/operations.h says,
and multiplied in by hand: no dropout of PyTorch's runs. Needs the folders that make_golden.py and make_lora.py wrote; weights, batch and
adapters are those of expected.safetensors and lora.safetensors. golden_dropout.h has the same probabilities, seed and samples.
"""

import pathlib

import numpy as np
import peft
import torch
import xxhash
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface

import make_golden
import make_lora

SEED = 1234
SAMPLES = [3, 17, 2**33 + 1, 1000]  # the samples' numbers in the run
EMBEDDING, ATTENTION, RESIDUAL, ADAPTERS = 0.15, 0.2, 0.1, 0.25


def philox(key, counter):
    """counter: uint32 [..., 4]; the same of words."""
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k = [np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> half) ^ c[1] ^ k[0], q & low, (p >> half) ^ c[3] ^ k[1], p & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, -1).astype(np.uint32)


# Published with the authors' Random123.
assert [hex(w) for w in philox(0, np.zeros(4, np.uint32))] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def factors(site, probability, rows, columns):
    """[B, rows, columns]: 0, or 1 / (1 - probability)."""
    key = xxhash.xxh3_64_intdigest(("dropout." + site).encode(), seed=SEED)
    blocks = rows * ((columns + 3) // 4)
    block = np.arange(blocks, dtype=np.uint64)
    out = []
    for sample in SAMPLES:
        counter = np.empty((blocks, 4), np.uint32)
        counter[:, 0], counter[:, 1] = block & np.uint64(0xFFFFFFFF), block >> np.uint64(32)
        counter[:, 2], counter[:, 3] = sample & 0xFFFFFFFF, sample >> 32
        words = philox(key, counter).reshape(rows, -1)[:, :columns]
        out.append(np.where(words.astype(np.float64) / 2.0**32 < probability, 0.0, 1.0 / (1.0 - probability)))
    return torch.from_numpy(np.stack(out))


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = torch.matmul(query, key.transpose(2, 3)) * (scaling or query.shape[-1] ** -0.5)
    tokens = scores.shape[-1]
    scores = scores.masked_fill(~torch.ones(tokens, tokens, dtype=torch.bool).tril(), -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    batch, heads = weights.shape[:2]
    kept = factors(f"blocks.{module.layer_idx}.attention.probabilities", ATTENTION, heads * tokens, tokens)
    weights = weights * kept.reshape(batch, heads, tokens, tokens)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class Dropped(torch.nn.Module):
    def __init__(self, site, probability):
        super().__init__()
        self.site, self.probability = site, probability

    def forward(self, x):
        return x * factors(self.site, self.probability, x.shape[1], x.shape[2])


def drop_output(module, site, probability):
    dropped = Dropped(site, probability)
    # Llama's attention gives its weights, too.
    module.register_forward_hook(lambda _, inputs, output: (dropped(output[0]), *output[1:]) if isinstance(output, tuple) else dropped(output))


def drop(model, is_gpt2):
    body = model.transformer if is_gpt2 else model.model
    # Behind adapters, which would take the place of a map that has a hook. GPT-2's own dropout, of probability 0, lies there.
    drop_output(body.drop if is_gpt2 else body.embed_tokens, "embedding.output", EMBEDDING)
    for i, block in enumerate(body.h if is_gpt2 else body.layers):
        drop_output(block.attn.resid_dropout if is_gpt2 else block.self_attn, f"blocks.{i}.attention", RESIDUAL)
        drop_output(block.mlp.dropout if is_gpt2 else block.mlp, f"blocks.{i}.ffn", RESIDUAL)


# What scaletrain calls the maps that adapters are of.
OURS = {"c_attn": "attention.qkv", "attn.c_proj": "attention.output", "c_fc": "ffn.up", "mlp.c_proj": "ffn.down",
        "q_proj": "attention.query", "k_proj": "attention.key", "v_proj": "attention.value", "o_proj": "attention.output",
        "gate_proj": "ffn.gate", "up_proj": "ffn.up", "down_proj": "ffn.down"}


def drop_adapter_inputs(model):
    count = 0
    for name, module in model.named_modules():
        if not hasattr(module, "lora_dropout") or not module.lora_dropout:
            continue
        layer = next(part for part in name.split(".") if part.isdigit())
        ours = next(value for key, value in OURS.items() if name.endswith(key))
        module.lora_dropout["default"] = Dropped(f"blocks.{layer}.{ours}.lora_a", ADAPTERS)
        count += 1
    assert count > 0


def loss_and_gradients(model, folder, names):
    batch = load_file(folder / "expected.safetensors")
    loss = make_golden.loss_of(model, batch["ids"][0].long(), batch["targets"][0].long())
    loss.backward()
    tensors = {"gradient/" + names(n): p.grad.clone().contiguous() for n, p in model.named_parameters() if p.requires_grad}
    return tensors | {"loss": loss.detach().reshape(1)}


def make(folder, model):
    is_gpt2 = folder.name == "gpt2"
    weights = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name].double())
    plain = loss_and_gradients(model, folder, str)["loss"].item()
    model.zero_grad()
    drop(model, is_gpt2)
    model.config._attn_implementation = "dropped"
    model.train()
    tensors = loss_and_gradients(model, folder, str)
    assert abs(tensors["loss"].item() - plain) > 1e-3
    save_file(tensors, folder / "dropout.safetensors")
    print(folder.name, "loss", tensors["loss"].item(), "without", plain)

    model.zero_grad()
    stored = load_file(folder / "lora.safetensors")
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.5, **make_lora.ADAPTERS[folder.name]),
                                  autocast_adapter_dtype=False).double()
    drop_adapter_inputs(adapted)
    adapted.train()

    def file_name(name):
        return name.replace(".default.weight", ".weight")

    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(stored["adapter/" + file_name(name)])
    with_adapters = loss_and_gradients(adapted, folder, file_name)
    save_file(with_adapters, folder / "dropout_lora.safetensors")
    print(folder.name, "with adapters, loss", with_adapters["loss"].item())


def main():
    AttentionInterface.register("dropped", attention)
    for folder, model, _ in make_golden.open_models(pathlib.Path(__file__).resolve().parent):
        make(folder, model)


if __name__ == "__main__":
    main()
