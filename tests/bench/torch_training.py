"""The same training steps in PyTorch, for bench_training: as fast as plain PyTorch goes.

torch_training.py eager|compiled|compiled-by-block MODEL CONTEXT PRECISION MICRO-BATCH THREADS cpu|cuda MICRO-BATCHES

compiled-by-block: torch.compile of each block, which are alike and so compiled once, and of what follows them: the whole of
a deep model takes minutes.

Prints one JSON line when it is ready, then one for every line that it reads: the seconds of a step (zeroed gradients,
forward and backward of every micro-batch, clipping, fused AdamW; on a GPU the mean of as many as make ten micro-batches)
and its loss. bf16 and fp16 are autocast's, with master weights in fp32.
"""
import contextlib
import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional

SHAPES = {
    "gpt2-124m": dict(layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=50257, llama=False),
    "gpt2-1558m": dict(layers=48, hidden=1600, heads=25, kv_heads=25, ffn=6400, vocab=50257, llama=False),
    "llama-1.5b": dict(layers=30, hidden=2048, heads=16, kv_heads=8, ffn=5632, vocab=32000, llama=True),
    "llama-150m": dict(layers=16, hidden=768, heads=12, kv_heads=4, ffn=2048, vocab=32000, llama=True),
}


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, layers, hidden, heads, kv_heads, ffn, llama, **_):
        super().__init__()
        self.heads, self.kv_heads, self.head_size, self.llama = heads, kv_heads, hidden // heads, llama
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.attention_norm, self.ffn_norm = norm(hidden), norm(hidden)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.head_size, bias=not llama)
        self.output = nn.Linear(hidden, hidden, bias=not llama)
        self.up = nn.Linear(hidden, 2 * ffn if llama else ffn, bias=not llama)
        self.down = nn.Linear(ffn, hidden, bias=not llama)

    def forward(self, x, angles):
        batch, tokens, hidden = x.shape
        sizes = [self.heads * self.head_size, self.kv_heads * self.head_size, self.kv_heads * self.head_size]
        query, key, value = (part.view(batch, tokens, -1, self.head_size).transpose(1, 2)
                             for part in self.qkv(self.attention_norm(x)).split(sizes, dim=-1))
        if self.llama:
            query, key = rotate(query, *angles).to(value.dtype), rotate(key, *angles).to(value.dtype)
            repeats = self.heads // self.kv_heads
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, tokens, hidden))
        inner = self.up(self.ffn_norm(x))
        if self.llama:
            gate, up = inner.chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)
        return x + self.down(functional.gelu(inner, approximate="tanh"))


class Model(nn.Module):
    def __init__(self, context, layers, hidden, heads, vocab, llama, **shape):
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.positions = None if llama else nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(layers, hidden, heads, llama=llama, **shape) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden) if llama else nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        if not llama:
            self.head.weight = self.embedding.weight
        size = hidden // heads
        angle = torch.arange(context)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids, targets):
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return self.loss(x, targets)

    def loss(self, x, targets):
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    def compile_by_block(self):
        for block in self.blocks:
            block.compile()
        self.loss = torch.compile(self.loss)


def main():
    mode, name, context, precision, micro_batch, threads, device, micro_batches = sys.argv[1:]
    context, micro_batch, micro_batches = int(context), int(micro_batch), int(micro_batches)
    shape = SHAPES[name]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    model = Model(context, **shape).to(device)
    repetitions = max(1, 10 // micro_batches) if device == "cuda" else 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if mode == "compiled-by-block":
        model.compile_by_block()
    compute = torch.compile(model) if mode == "compiled" else model
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    described = f"PyTorch {torch.__version__.split('+')[0]} {mode}{', autocast' if half else ''}"
    print(json.dumps({"name": described}), flush=True)
    for _ in sys.stdin:
        ids, targets = (torch.randint(shape["vocab"], (micro_batch, context)).to(device) for _ in range(2))
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repetitions):
            optimizer.zero_grad(set_to_none=True)
            for _ in range(micro_batches):
                with torch.autocast(device, dtype=half) if half else contextlib.nullcontext():
                    loss = compute(ids, targets) / micro_batches
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / repetitions
        value = loss.item() * micro_batches
        assert math.isfinite(value)
        print(json.dumps({"seconds": seconds, "loss": value}), flush=True)


if __name__ == "__main__":
    main()
