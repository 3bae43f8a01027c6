#!/usr/bin/env python3
"""Makes the golden models and numbers of this folder, with PyTorch in float64.

    python3 -m venv venv && venv/bin/pip install torch transformers safetensors
    venv/bin/python tests/golden/make_golden.py [FOLDER ...]

The weights are random, large enough that every non-linearity matters, and stored in float32; everything is computed in float64 from
exactly those values. Hugging Face's Llama computes norms, softmax and rotary angles in float32 whatever the model's type: those three are
replaced here by the same formulas in float64, and the unpatched model is checked to agree to float32 precision.
"""

import json
import math
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GemmaConfig, GemmaForCausalLM, \
    GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, \
    Qwen3ForCausalLM
from transformers.models.gemma import modeling_gemma
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

STEPS, SAMPLES, TOKENS = 20, 4, 16
OPTIMIZER = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, warmup=10, min_ratio=0.1)


def norm_forward(self, hidden):
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * (hidden * scale)


def gemma_norm_forward(self, hidden):
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


def gemma_rotary_forward(self, hidden, position_ids, layer_type=None):
    """As published, in float64; Gemma 3 has parameters for each type of layer."""
    rope = self.config.rope_parameters
    rope = rope if layer_type is None else rope[layer_type]
    assert rope["rope_type"] in ("default", "linear"), rope
    half = self.config.head_dim // 2
    inverse = rope["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = position_ids[:, :, None].double() * inverse / rope.get("factor", 1.0)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)


def capped_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, softcap=None, **kwargs):
    """transformers' own with its softmax in float64."""
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores + attention_mask, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def inverse_frequencies(config, size):
    """As published, in float64: theta^(-2d/D); llama3 divides those that turn seldom in the original context by the factor."""
    inverse = ROPE_THETA ** (-torch.arange(size, dtype=torch.float64) / size)
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        return inverse
    assert rope["rope_type"] == "llama3", rope
    factor, low, high, context = (rope[key] for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    wavelength = 2 * math.pi / inverse
    smooth = (context / wavelength - low) / (high - low)
    between = (1 - smooth) * inverse / factor + smooth * inverse
    return torch.where(wavelength > context / low, inverse / factor, torch.where(wavelength < context / high, inverse, between))


def rotary_forward(self, hidden, position_ids):
    angles = position_ids[:, :, None].double() * inverse_frequencies(self.config, self.inv_freq.shape[0])
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)


ROPE_THETA = 10000.0


def fill(model, generator, norm_centre):
    """Matrices normal(0.25), norm weights around norm_centre, biases normal(0.1): nothing is symmetric, zero or one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.dim() >= 2:
                values *= 0.25
            elif name.endswith("bias"):
                values *= 0.1
            else:
                values = norm_centre + 0.2 * values
            parameter.copy_(values.double())


def fill_from(model, weights):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name].double())


def make_batches(vocab, generator):
    ids = torch.randint(0, vocab, (STEPS, SAMPLES, TOKENS), generator=generator)
    targets = torch.randint(0, vocab, (STEPS, SAMPLES, TOKENS), generator=generator)
    # Half the targets can be learnt: the successor modulo V. Masked ones are uneven, and one sample of step 3 is all masked.
    learnable = torch.rand(targets.shape, generator=generator) < 0.5
    targets = torch.where(learnable, (ids + 1) % vocab, targets)
    share = torch.tensor([0.0, 0.1, 0.4, 0.7])[None, :, None]
    masked = torch.rand(targets.shape, generator=generator) < share
    targets[masked] = -1
    targets[3, 2] = -1
    return ids, targets


def loss_of(model, ids, targets):
    logits = model(input_ids=ids, use_cache=False).logits
    flat = torch.where(targets < 0, torch.full_like(targets, -100), targets).reshape(-1)
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), flat, ignore_index=-100)


def learning_rate(update):
    peak, warmup, low = OPTIMIZER["learning_rate"], OPTIMIZER["warmup"], OPTIMIZER["min_ratio"]
    if update <= warmup:
        return peak * update / warmup
    progress = (update - warmup) / (STEPS - warmup)
    return peak * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


def train(model, ids, targets, clip_norm):
    """Losses, norms and learning rates of STEPS steps of all parameters that are not frozen."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=OPTIMIZER["weight_decay"]), dict(params=vectors, weight_decay=0.0)],
        lr=0.0, betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["epsilon"], foreach=False)
    losses, norms, rates = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, ids[step], targets[step])
        loss.backward()
        norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in parameters))
        if norm > clip_norm:
            for p in parameters:
                p.grad.mul_(clip_norm / norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step + 1)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
        rates.append(learning_rate(step + 1))
    return losses, norms, rates


def as_tensors(losses, norms, rates):
    named = dict(losses=losses, grad_norms=norms, learning_rates=rates)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in named.items()}


def save(path, tensors, clip_norm):
    """With the optimizer's settings."""
    metadata = {key: repr(float(value)) for key, value in OPTIMIZER.items()}
    metadata["clip_norm"] = repr(clip_norm)
    save_file({n: t.contiguous() for n, t in tensors.items()}, path, metadata)


def add_training(path, model, restore, more=None):
    """For scripts that train a part of a golden model: steps on the batches of expected.safetensors beside `path`, of which about half
    clip. restore() puts the model back to where it begins; `more` tensors go to the file too. Returns the losses and the clip norm."""
    batch = load_file(path.parent / "expected.safetensors")
    ids, targets = batch["ids"].long(), batch["targets"].long()
    restore()
    norms = train(model, ids, targets, clip_norm=float("inf"))[1]
    clip_norm = sorted(norms)[STEPS // 2]
    restore()
    losses, norms, rates = train(model, ids, targets, clip_norm)
    tensors = (more or {}) | dict(ids=batch["ids"], targets=batch["targets"]) | as_tensors(losses, norms, rates)
    save(path, tensors, clip_norm)
    return losses, clip_norm


def make(folder, model, config, vocab, seed, agreement=None, norm_centre=1.0):
    generator = torch.Generator().manual_seed(seed)
    fill(model, generator, norm_centre)
    ids, targets = make_batches(vocab, generator)
    weights = {n: p.detach().float().contiguous().clone() for n, p in model.named_parameters()}
    if agreement is not None:
        agreement(model, ids[0], targets[0])

    loss = loss_of(model, ids[0], targets[0])
    loss.backward()
    tensors = {"gradient/" + n: p.grad.clone() for n, p in model.named_parameters()}
    norm = math.sqrt(sum(g.pow(2).sum().item() for g in tensors.values()))
    losses = train(model, ids, targets, clip_norm=float("inf"))[1]
    clip_norm = sorted(losses)[STEPS // 2]  # about half the steps clip
    fill_from(model, weights)
    losses, norms, rates = train(model, ids, targets, clip_norm)
    clipped = sum(n > clip_norm for n in norms)
    assert 0 < clipped < STEPS, clipped
    assert losses[0] == loss.item() and norms[0] == norm

    tensors["ids"] = ids.to(torch.int32)
    tensors["targets"] = targets.to(torch.int32)
    tensors |= as_tensors(losses, norms, rates)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    save(folder / "expected.safetensors", tensors, clip_norm)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(folder.name, "loss", losses[0], "->", losses[-1], "norm", norms[0], "clip", clip_norm, "clipped", clipped)


def open_models(here, names=("gpt2", "llama_untied")):
    """(folder, model in float64, its weights) of models that this script has written, for scripts that add to them."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for module, prefix in ((modeling_llama, "Llama"), (modeling_qwen3, "Qwen3")):
        getattr(module, prefix + "RMSNorm").forward = norm_forward
        getattr(module, prefix + "RotaryEmbedding").forward = rotary_forward
    # Which attention takes its softmax in float64.
    models = dict(gpt2=(GPT2Config, GPT2LMHeadModel, "eager"), llama_untied=(LlamaConfig, LlamaForCausalLM, "sdpa"),
                  qwen3=(Qwen3Config, Qwen3ForCausalLM, "sdpa"))
    for name in names:
        config_type, model_type, attention = models[name]
        config = json.loads((here / name / "config.json").read_text())
        weights = load_file(here / name / "model.safetensors")
        model = model_type(config_type(**config, attn_implementation=attention)).double()
        fill_from(model, weights)
        yield here / name, model, weights


def gpt2(here):
    config = dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", vocab_size=61, n_positions=TOKENS, n_embd=24, n_layer=2,
                  n_head=3, n_inner=None, activation_function="gelu_new", layer_norm_epsilon=1e-5, attn_pdrop=0.0, embd_pdrop=0.0,
                  resid_pdrop=0.0, tie_word_embeddings=True, torch_dtype="float32")
    model = GPT2LMHeadModel(GPT2Config(**config, attn_implementation="eager")).double()
    make(here / "gpt2", model, config, config["vocab_size"], seed=1)


def llama(here, name, tied, bias, seed, **more):
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=53, max_position_embeddings=TOKENS, hidden_size=24,
                  intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=4,
                  hidden_act="silu", rms_norm_eps=1e-6, rope_theta=ROPE_THETA, attention_bias=bias, mlp_bias=bias,
                  attention_dropout=0.0, tie_word_embeddings=tied, torch_dtype="float32") | more
    make_rotary(here / name, LlamaForCausalLM, LlamaConfig, modeling_llama, "Llama", config, seed)


def make_rotary(folder, model_class, config_class, module, prefix, config, seed):
    model = model_class(config_class(**config, attn_implementation="sdpa")).double()
    norm, rotary = getattr(module, prefix + "RMSNorm"), getattr(module, prefix + "RotaryEmbedding")

    def agreement(model, ids, targets):
        exact = loss_of(model, ids, targets).item()
        patched = norm.forward, rotary.forward
        norm.forward, rotary.forward = original
        published = loss_of(model, ids, targets).item()
        norm.forward, rotary.forward = patched
        assert abs(exact - published) < 1e-6, (exact, published)

    original = norm.forward, rotary.forward
    norm.forward, rotary.forward = norm_forward, rotary_forward
    make(folder, model, config, config["vocab_size"], seed, agreement)
    norm.forward, rotary.forward = original


def llama3(here):
    # Of the four frequencies the first stays, the second is between the two factors, and the last two are divided.
    scaling = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
    llama(here, "llama3_scaled", tied=True, bias=False, seed=4, num_attention_heads=3, num_key_value_heads=1, head_dim=8, rope_scaling=scaling)


def qwen2(here):
    config = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=53, max_position_embeddings=TOKENS, hidden_size=24,
                  intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, hidden_act="silu",
                  rms_norm_eps=1e-6, rope_theta=ROPE_THETA, use_sliding_window=False, sliding_window=4, max_window_layers=1,
                  attention_dropout=0.0, tie_word_embeddings=True, torch_dtype="float32",
             pad_token_id=None)  # 0 where it is left out, whose embedding gets no gradient from torch
    make_rotary(here / "qwen2", Qwen2ForCausalLM, Qwen2Config, modeling_qwen2, "Qwen2", config, seed=5)


def qwen3(here):
    config = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=53, max_position_embeddings=TOKENS, hidden_size=20,
                  intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8, hidden_act="silu",
                  rms_norm_eps=1e-6, rope_theta=ROPE_THETA, attention_bias=False, use_sliding_window=False, sliding_window=None,
                  max_window_layers=2, attention_dropout=0.0, tie_word_embeddings=False, torch_dtype="float32")
    make_rotary(here / "qwen3", Qwen3ForCausalLM, Qwen3Config, modeling_qwen3, "Qwen3", config, seed=6)


def make_gemma(folder, model_class, config_class, module, prefix, config, seed, capped=False):
    # Softmax is float32 in transformers' eager attention, which alone caps scores.
    model = model_class(config_class(**config, attn_implementation="eager" if capped else "sdpa")).double()
    norm, rotary = getattr(module, prefix + "RMSNorm"), getattr(module, prefix + "RotaryEmbedding")
    original = norm.forward, rotary.forward, module.eager_attention_forward

    def patch(functions):
        norm.forward, rotary.forward, module.eager_attention_forward = functions

    exact_functions = gemma_norm_forward, gemma_rotary_forward, capped_attention

    def agreement(model, ids, targets):
        exact = loss_of(model, ids, targets).item()
        patch(original)
        published = loss_of(model, ids, targets).item()
        patch(exact_functions)
        assert abs(exact - published) < 1e-6, (exact, published)

    patch(exact_functions)
    make(folder, model, config, config["vocab_size"], seed, agreement, norm_centre=0.0)
    patch(original)


# A hidden size whose root float32 holds: transformers keeps the factor of embeddings in it. Every position but the first four has a
# window to its left that is not all of it.
GEMMA = dict(vocab_size=53, max_position_embeddings=TOKENS, hidden_size=36, intermediate_size=40, num_attention_heads=6,
             num_key_value_heads=2, head_dim=8, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, attention_bias=False,
             attention_dropout=0.0, tie_word_embeddings=True, torch_dtype="float32",
             pad_token_id=None)  # 0 where it is left out, whose embedding gets no gradient from torch


def gemma(here):
    config = dict(architectures=["GemmaForCausalLM"], model_type="gemma", num_hidden_layers=2, hidden_act="gelu_pytorch_tanh",
                  rope_theta=ROPE_THETA) | GEMMA
    make_gemma(here / "gemma", GemmaForCausalLM, GemmaConfig, modeling_gemma, "Gemma", config, seed=7)


def gemma2(here):
    config = dict(architectures=["Gemma2ForCausalLM"], model_type="gemma2", num_hidden_layers=3, query_pre_attn_scalar=10,
                  sliding_window=5, attn_logit_softcapping=1.5, final_logit_softcapping=3.0, rope_theta=ROPE_THETA) | GEMMA
    make_gemma(here / "gemma2", Gemma2ForCausalLM, Gemma2Config, modeling_gemma2, "Gemma2", config, seed=8, capped=True)


def gemma3(here):
    # Three layers with windows and rotations of their own, and one without, whose rotations are scaled.
    types = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    ropes = dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=100000.0),
                 sliding_attention=dict(rope_type="default", rope_theta=500.0))
    config = dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", num_hidden_layers=4, query_pre_attn_scalar=10,
                  sliding_window=5, layer_types=types, final_logit_softcapping=None, attn_logit_softcapping=None,
                  rope_parameters=ropes) | GEMMA
    make_gemma(here / "gemma3", Gemma3ForCausalLM, Gemma3TextConfig, modeling_gemma3, "Gemma3", config, seed=9)


def main():
    """All models, or those that the command line names."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    here = pathlib.Path(__file__).resolve().parent
    models = dict(gpt2=gpt2, llama_untied=lambda here: llama(here, "llama_untied", tied=False, bias=False, seed=2),
                  llama_tied=lambda here: llama(here, "llama_tied", tied=True, bias=True, seed=3), llama3_scaled=llama3, qwen2=qwen2,
                  qwen3=qwen3, gemma=gemma, gemma2=gemma2, gemma3=gemma3)
    for name in sys.argv[1:] or models:
        models[name](here)


if __name__ == "__main__":
    main()
