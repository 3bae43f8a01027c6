#!/usr/bin/env python3
"""Adapters that scaletrain trained, in peft: for several families and targets peft loads the exported adapter, and computes what the merged
export computes, which is not what the base does. And the other way: adapters of random numbers that peft has saved are what a run begins
as (finetune.lora.from), whose merged export computes what they compute in peft.

    venv/bin/python tests/peers/adapters.py build/release/bin/scaletrain    (scripts/peers.sh makes the environment and runs this)
"""

import pathlib
import sys
import tempfile
import warnings

import peft
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import families

# By family: targets as the config has them.
TARGETS = {
    "gpt2": ["[all-linear]", "[c_attn]", "[attn.c_proj, c_fc]"],
    "llama": ["[all-linear]", "[q_proj, v_proj]", "[k_proj, o_proj, up_proj]"],
    "mistral": ["[down_proj, gate_proj]"],
    "qwen2": ["[all-linear]"],
    "qwen3": ["[all-linear]", "[self_attn.q_proj, mlp.down_proj]"],
    "gemma": ["[all-linear]", "[self_attn.v_proj, mlp.gate_proj]"],
    "gemma 2": ["[q_proj, o_proj]"],
}


def check_beginning(program, folder, name, targets, ids):
    """A run of one step that learns next to nothing has the adapters that it began as."""
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=7, fan_in_fan_out=name == "gpt2",
                           target_modules="all-linear" if targets == "[all-linear]" else targets[1:-1].split(", "))
    adapted = peft.get_peft_model(families.load(folder / "source"), lora).eval()
    with torch.no_grad():
        for key, values in adapted.named_parameters():
            if ".lora_B." in key:
                values.normal_(0, 0.3)
    adapted.save_pretrained(folder / "peft")
    config = (folder / "config.yaml").read_text().replace(str(folder / "run"), str(folder / "begun"))
    config = config.replace("lora: {rank", f"lora: {{from: {folder / 'peft'}, rank").replace("steps: 20", "steps: 1")
    (folder / "begun.yaml").write_text(config.replace("learning_rate: 1e-2", "learning_rate: 1e-12"))
    families.call(program, "run", folder / "begun.yaml")
    families.call(program, "checkpoint", "export", folder / "begun", "--to", "huggingface", "--output", folder / "begun_merged")
    with torch.no_grad():
        ours, theirs = families.load(folder / "begun_merged")(input_ids=ids).logits, adapted(input_ids=ids).logits
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert difference < 1e-5, (name, targets, difference)
    return difference


def check(program, folder, name, targets, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(families.FAMILIES[name]).eval()
    source, text, run = folder / "source", folder / "text.txt", folder / "run"
    model.save_pretrained(source)
    letters = torch.randint(97, 123, (families.SAMPLES * families.CONTEXT,))
    text.write_bytes(bytes(letters.tolist()))
    (folder / "config.yaml").write_text(
        f"run: {{directory: {run}, device: cpu}}\nmodel: {{init: {{from: {source}}}}}\n"
        f"data: {{train: [{{path: {text}}}]}}\nfinetune: {{lora: {{rank: 3, alpha: 7, targets: {targets}}}}}\n"
        "train: {steps: 20, global_batch: 2, micro_batch: 1, optimizer: {learning_rate: 1e-2}}\nprecision: {compute: fp32}\n")
    families.call(program, "run", folder / "config.yaml")
    families.call(program, "checkpoint", "export", run, "--to", "huggingface", "--output", folder / "merged")
    families.call(program, "checkpoint", "export", run, "--to", "huggingface", "--adapter", "--output", folder / "adapter")
    ids = letters[:families.CONTEXT * 2].reshape(2, families.CONTEXT)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # peft warns of keys that are missing or unexpected
        before = model(input_ids=ids).logits
        merged = families.load(folder / "merged")(input_ids=ids).logits
        adapted = peft.PeftModel.from_pretrained(families.load(source), folder / "adapter").eval()
        ours = adapted(input_ids=ids).logits
    # The run read bytes, and its tokenizer lies beside the adapter.
    assert transformers.AutoTokenizer.from_pretrained(folder / "adapter")("abc").input_ids == [97, 98, 99], name
    stored = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert len(stored) == sum(".lora_" in key for key, _ in adapted.named_parameters()), name
    difference = ((ours - merged).abs().max() / ours.abs().max()).item()
    assert difference < 1e-5, (name, targets, difference)
    assert (ours - before).abs().max().item() > 1e-2, (name, targets)
    # peft's own merge has the same weights.
    theirs = adapted.merge_and_unload().state_dict()
    for key, values in load_file(folder / "merged" / "model.safetensors").items():
        assert torch.allclose(values, theirs[key], rtol=0, atol=1e-6), (name, key)
    begun = check_beginning(program, folder, name, targets, ids)
    print(f"{name}, {targets}: {len(stored)} tensors; logits differ by {difference:.1e} of the largest, from peft's own by {begun:.1e}")


def main():
    transformers.logging.disable_progress_bar()
    program = str(pathlib.Path(sys.argv[1]).resolve())
    seed = 0
    for name, all_targets in TARGETS.items():
        for targets in all_targets:
            seed += 1
            with tempfile.TemporaryDirectory() as folder:
                check(program, pathlib.Path(folder), name, targets, seed)


if __name__ == "__main__":
    main()
