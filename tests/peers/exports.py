#!/usr/bin/env python3
"""What scaletrain exports, in the hands of other programs: tokenizers and settings by transformers, GGUF files by llama.cpp.

    venv/bin/python tests/peers/exports.py build/release/bin/scaletrain SHARED    (scripts/peers.sh makes the environment and runs this)

For each tokenizer in SHARED (GPT-2, Llama 3, Qwen 3, Llama 2's SentencePiece) and for bytes: a run of two steps is exported; AutoTokenizer
and AutoModelForCausalLM load the folder without a word, with the ids of the tokenizer's own library, the same text back, and the chat
template that was there. For each family a run in bytes is exported as GGUF in fp32, int8 and int4: llama.cpp (xllamacpp) computes the loss
of transformers on the exported folder, to 1e-4 in fp32, and the loss that scaletrain says rounding leads to, to 2e-2: llama.cpp also
rounds activations there. Texts become the same tokens in it.
"""

import json
import logging
import pathlib
import subprocess
import sys
import tempfile
import warnings

import sentencepiece
import tokenizers
import torch
import transformers
import xllamacpp
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = ["Hello world, it's 12345 o'clock", "  two  spaces\n\n  and a tab\t!", "naïve 日本語 😀 x", "a", "\n\n  x\t"]
LLAMA = "position: rope, norm: rmsnorm, activation: swiglu, tie_embeddings: false"
GEMMA = ("position: rope, norm: rmsnorm, norm_zero_centered: true, activation: geglu, scale_embeddings: true, bias: false, kv_heads: 2, "
         "head_dim: 32, tie_embeddings: true")
CONTEXT, SAMPLES = 64, 2

FAMILIES = {
    "gpt2": "activation: gelu_tanh",
    "llama": LLAMA + ", bias: false, kv_heads: 2, rope_scaling: {type: llama3, factor: 4, original_context: 32}",
    "llama, biases": LLAMA + ", bias: true, rope_scaling: {type: linear, factor: 2}",
    "mistral": LLAMA + ", bias: false, head_dim: 32",
    "qwen2": LLAMA + ", bias: false, qkv_bias: true, kv_heads: 2",
    "gemma": GEMMA,
    "gemma2": GEMMA + ", post_norm: true, attention_softcap: 5, logit_softcap: 8, window: {tokens: 16, global_every: 2}",
    "gemma3": "layers: 7, " + GEMMA + ", post_norm: true, qk_norm: true, rope_theta: 1e6, rope_scaling: {type: linear, factor: 2}, "
              "window: {tokens: 16, global_every: 6, rope_theta: 1e4}",
    "qwen3": LLAMA + ", bias: false, qk_norm: true, head_dim: 32",
}


def call(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def train(program, folder, model, tokenizer, steps, rate):
    run = folder / "run"
    (folder / "config.yaml").write_text(
        f"run: {{directory: {run}, device: cpu}}\nmodel: {{{'' if 'layers:' in model else 'layers: 2, '}hidden: 64, heads: 4, context: {CONTEXT}, {model}}}\n"
        f"data: {{tokenizer: {tokenizer}, train: [{{path: {folder / 'text.txt'}}}]}}\n"
        f"train: {{steps: {steps}, global_batch: 8, micro_batch: 8, optimizer: {{learning_rate: {rate}}}}}\nprecision: {{compute: fp32}}\n")
    call(program, "run", folder / "config.yaml")
    return run


def ids_of(name, shared):
    if name == "bytes":
        return lambda text: list(text.encode())
    if name == "llama2":
        model = sentencepiece.SentencePieceProcessor(str(shared / "llama2" / "tokenizer.model"))
        return lambda text: [model.bos_id()] + model.encode(text)
    if name == "gpt2":
        pair = [str(shared / "gpt2" / file) for file in ("encoder.json", "vocab.bpe")]
        model = tokenizers.ByteLevelBPETokenizer(*pair)
    else:
        model = tokenizers.Tokenizer.from_file(str(shared / name / "tokenizer.json"))
    return lambda text: model.encode(text).ids


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def check_tokenizer(program, folder, name, shared):
    (folder / "text.txt").write_text("the cat sat on the mat. " * 200)
    kinds = {"bytes": "{type: bytes}", "llama2": f"{{type: sentencepiece, path: {shared / 'llama2'}}}"}
    run = train(program, folder, FAMILIES["llama"], kinds.get(name, f"{{type: bpe, path: {shared / name}}}"), 2, "1e-4")
    call(program, "checkpoint", "export", run, "--to", "huggingface", "--output", folder / "out")
    said = Said()
    transformers.logging.get_logger("transformers").addHandler(said)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        _, info = AutoModelForCausalLM.from_pretrained(folder / "out", output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(folder / "out")
    transformers.logging.get_logger("transformers").removeHandler(said)
    # What a tokenizer_config.json that was there asks for is its own affair.
    messages = [message for message in said.messages if "clean_up_tokenization_spaces" not in message]
    assert not messages and not warned and not any(info.values()), (name, messages, warned, info)
    expected = ids_of(name, shared)
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert ids == expected(text), (name, text, ids, expected(text))
        assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text, (name, text)
    source = shared / name / "tokenizer_config.json"
    template = json.loads(source.read_text()).get("chat_template") if source.exists() else None
    assert tokenizer.chat_template == template, name
    print(f"{name}: {type(tokenizer).__name__}, {len(tokenizer)} tokens" + (", with its chat template" if template else ""))


class Llama:
    """llama.cpp with one file."""

    def __init__(self, file):
        options = xllamacpp.CommonParams()
        options.model.path = str(file)
        options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 2 * CONTEXT, 1, False, -1
        self.server = xllamacpp.Server(options)

    def next_token(self, prompt):
        """Log-probabilities by id, and the length of the prompt; nothing where the likeliest token is no text by itself."""
        answer = self.server.handle_completions(
            {"prompt": prompt, "n_predict": 1, "n_probs": 257, "temperature": 0, "cache_prompt": False, "samplers": []})
        logprobs = answer["choices"][0]["logprobs"]
        tokens = {} if logprobs is None else {one["id"]: one["logprob"] for one in logprobs["content"][0]["top_logprobs"]}
        return tokens, answer["usage"]["prompt_tokens"]


def losses(next_token, windows):
    """Of each target but the last of a window, for which llama.cpp's context has no room; nothing where none is known."""
    found = {}
    for i, window in enumerate(windows):
        for j in range(CONTEXT - 1):
            value = next_token(window[:j + 1]).get(window[j + 1])
            if value is not None:
                found[i, j] = -value
    return found


def check_family(program, folder, name, model):
    text = ("To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows "
            "of outrageous fortune, or to take arms against a sea of troubles and by opposing end them. To die: to sleep; ")
    (folder / "text.txt").write_text(text * 40)
    held = folder / "held.txt"
    held.write_text(text[:SAMPLES * CONTEXT])
    run = train(program, folder, model, "{type: bytes}", 60, "5e-3")
    call(program, "checkpoint", "export", run, "--to", "huggingface", "--output", folder / "out")
    theirs = AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32).eval()
    tokens = list(held.read_bytes()) + [256]
    windows = [tokens[i * CONTEXT:(i + 1) * CONTEXT + 1] for i in range(SAMPLES)]

    def by_transformers(prompt):
        with torch.no_grad():
            return dict(enumerate(theirs(input_ids=torch.tensor([prompt])).logits[0, -1].double().log_softmax(-1).tolist()))

    expected = losses(by_transformers, windows)
    said = []
    for dtype in ("fp32", "int8", "int4"):
        file = folder / f"{dtype}.gguf"
        data = [] if dtype == "fp32" else ["--data", held]
        words = call(program, "checkpoint", "export", run, "--to", "gguf", "--dtype", dtype, "--output", file, *data).split()
        llama = Llama(file)
        found = losses(lambda prompt: llama.next_token(prompt)[0], windows)
        assert len(found) > 0.9 * len(expected), (name, dtype, len(found))
        mean = sum(found.values()) / len(found)
        reference = sum(expected[place] for place in found) / len(found)
        if dtype == "fp32":
            assert abs(mean - reference) < 1e-4, (name, mean, reference)
            for prompt in TEXTS:
                assert llama.next_token(prompt)[1] == len(prompt.encode()), (name, prompt)
        else:
            before, after = float(words[words.index("loss") + 1]), float(words[words.index("fp32,") + 1])
            assert abs((mean - reference) - (after - before)) < 2e-2, (name, dtype, mean, reference, before, after)
        said.append(f"{dtype} {mean:.5f} (fp32 by transformers {reference:.5f})")
    print(f"{name}: llama.cpp's loss " + ", ".join(said))


def main():
    transformers.logging.disable_progress_bar()
    program, shared = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve() / "tokenizers"
    for name in ("bytes", "gpt2", "llama3", "qwen3", "llama2"):
        if name == "bytes" or (shared / name).exists():
            with tempfile.TemporaryDirectory() as folder:
                check_tokenizer(program, pathlib.Path(folder), name, shared)
        else:
            print(f"{name}: {shared / name} is not there")
    for name, model in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            check_family(program, pathlib.Path(folder), name, model)


if __name__ == "__main__":
    main()
