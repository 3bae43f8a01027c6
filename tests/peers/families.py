#!/usr/bin/env python3
"""Every model family in and out: transformers makes a random tiny model, scaletrain evaluates, trains and exports it, transformers loads that.

    venv/bin/python tests/peers/families.py build/release/bin/scaletrain    (scripts/peers.sh makes the environment and runs this)

For each family: the loss on the same tokens agrees to 1e-5; an export of the folder holds every tensor bit for bit; a run from the
folder alone, with no key of the shape beside it, begins at that loss; its export loads without a missing, unexpected or misshapen
tensor and computes the same loss as the checkpoint.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
import transformers
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GemmaConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

VOCAB, CONTEXT, SAMPLES, END = 257, 24, 6, 256
TOLERANCE = 1e-5
LLAMA = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=END, initializer_range=0.3)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
GEMMA = LLAMA | dict(head_dim=12, pad_token_id=None, num_hidden_layers=4)
GEMMA3_ROPES = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=100000.0),
                    sliding_attention=dict(rope_type="default", rope_theta=500.0))

FAMILIES = {
    "gpt2": GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=48, n_layer=3, n_head=6, bos_token_id=None, eos_token_id=END,
                       initializer_range=0.3, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
    "llama": LlamaConfig(**LLAMA),
    "llama, biases": LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True),
    "llama, head_dim": LlamaConfig(**LLAMA, head_dim=12),
    "llama, linear": LlamaConfig(**LLAMA, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama 3.2": LlamaConfig(**LLAMA, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "smollm2": LlamaConfig(**LLAMA, tie_word_embeddings=True),
    "mistral": MistralConfig(**LLAMA, sliding_window=None),
    "mistral, head_dim": MistralConfig(**(LLAMA | dict(hidden_size=50)), head_dim=16, sliding_window=CONTEXT),
    "mistral, narrow window": MistralConfig(**LLAMA, sliding_window=5),
    "qwen2": Qwen2Config(**LLAMA, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**LLAMA, head_dim=16),
    "qwen3, tied": Qwen3Config(**LLAMA, head_dim=8, tie_word_embeddings=True),
    "gemma": GemmaConfig(**GEMMA),
    "gemma 2": Gemma2Config(**GEMMA, query_pre_attn_scalar=9, sliding_window=5, attn_logit_softcapping=3.0, final_logit_softcapping=4.0),
    "gemma 2, uncapped": Gemma2Config(**GEMMA, sliding_window=7, attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma 3": Gemma3TextConfig(**GEMMA, query_pre_attn_scalar=16, sliding_window=5, sliding_window_pattern=3, rope_parameters=GEMMA3_ROPES),
    "gemma 3, untied": Gemma3TextConfig(**(GEMMA | dict(tie_word_embeddings=False)), sliding_window=30, final_logit_softcapping=5.0),
}


def call(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def loss_of(model, tokens):
    windows = torch.tensor(tokens, dtype=torch.long)
    inputs = torch.stack([windows[i * CONTEXT:(i + 1) * CONTEXT] for i in range(SAMPLES)])
    targets = torch.stack([windows[i * CONTEXT + 1:(i + 1) * CONTEXT + 1] for i in range(SAMPLES)])
    with torch.no_grad():
        logits = model(input_ids=inputs, use_cache=False).logits.double()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1)).item()


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (folder, kind, info[kind])
    return model.eval()


def check_close(ours, theirs, what):
    assert abs(ours - theirs) <= TOLERANCE * abs(theirs), (what, ours, theirs)


def check(program, folder, name, config, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():  # nothing is symmetric, zero or one
            if parameter.dim() < 2:
                parameter.add_(0.2 * torch.randn_like(parameter))
    source, text, run = folder / "source", folder / "text.bin.txt", folder / "run"
    model.save_pretrained(source)
    letters = torch.randint(97, 123, (SAMPLES * CONTEXT,)).tolist()
    text.write_bytes(bytes(letters))
    theirs = loss_of(model, letters + [END])

    def evaluate(path):
        options = ["--tokenizer", "bytes"] if (path / "config.json").exists() else []
        return json.loads(call(program, "evaluate", path, "--data", text, "--json", *options))[0]["loss"]

    check_close(evaluate(source), theirs, name + ": the imported loss")

    call(program, "checkpoint", "export", source, "--to", "huggingface", "--output", folder / "copy")
    before, after = load_file(source / "model.safetensors"), load_file(folder / "copy" / "model.safetensors")
    assert before.keys() == after.keys(), (name, before.keys() ^ after.keys())
    for key in before:
        assert torch.equal(before[key], after[key]), (name, key)
    assert loss_of(load(folder / "copy"), letters + [END]) == theirs, name

    (folder / "config.yaml").write_text(
        f"run: {{directory: {run}, device: cpu}}\nmodel: {{init: {{from: {source}}}}}\n"
        f"data: {{train: [{{path: {text}}}], validation: [{{name: held, path: {text}}}]}}\n"
        "train: {steps: 2, global_batch: 2, micro_batch: 1}\nprecision: {compute: fp32}\nevaluate: {every: 1}\n")
    call(program, "check", folder / "config.yaml")
    call(program, "run", folder / "config.yaml")
    trained = evaluate(run)
    assert trained != theirs, name
    call(program, "checkpoint", "export", run, "--to", "huggingface", "--output", folder / "trained")
    exported = json.loads((folder / "trained" / "config.json").read_text())
    assert exported["eos_token_id"] == END, exported
    check_close(trained, loss_of(load(folder / "trained"), letters + [END]), name + ": the exported loss")
    print(f"{name}: {config.model_type} in, {exported['model_type']} out; loss {theirs:.6f}, after two steps {trained:.6f}")


def main():
    transformers.logging.disable_progress_bar()
    program = str(pathlib.Path(sys.argv[1]).resolve())
    for seed, (name, config) in enumerate(FAMILIES.items()):
        with tempfile.TemporaryDirectory() as folder:
            check(program, pathlib.Path(folder), name, config, seed)


if __name__ == "__main__":
    main()
