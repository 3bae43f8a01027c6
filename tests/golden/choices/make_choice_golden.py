#!/usr/bin/env python3
"""Writes a tiny GPT-2 for bytes, questions, and what the rule of lm-evaluation-harness makes of them in float64.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python tests/golden/choices/make_choice_golden.py

A token is a byte and 256 ends a document, as scaletrain's byte tokenizer has it. The log-likelihood of a choice is that of
" " + choice behind the question (TemplateLM._encode_pair: white space at the question's end goes to the choice), read with
the end of the text where it is longer than the context (HFLM._loglikelihood_tokens).
"""

import json
import math
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).parent
CONTEXT = 24
END = 256

QUESTIONS = [
    {"question": "2 + 2 =", "choices": ["4", "22", "five"], "answer": 0},
    {"question": "The end ", "choices": ["is near", "was"], "answer": "was"},
    {"question": "", "choices": ["a", "b", "c", "d"], "answer": 3},
    {"question": "caf\u00e9?", "choices": ["\u00fcber", "ja", "no"], "answer": "ja"},
    {"question": "A question that is longer than the context", "choices": ["yes", "no, not at all"], "answer": 1},
    {"question": "x \t\n", "choices": ["y", "zz"], "answer": 0},
    {"question": "same", "choices": ["one", "one", "two"], "answer": 0},
    {"question": "Q: a\nA:", "choices": ["bbbb", "b", "bb", "bbb"], "answer": 2},
]


def encode_pair(context, continuation):
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    whole = list((context + continuation).encode())
    context_tokens = list(context.encode())
    if not context_tokens:
        return [END], whole
    return context_tokens, whole[len(context_tokens):]


def log_likelihood(model, context, continuation):
    tokens = (context + continuation)[-(CONTEXT + 1):]
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]])).logits[0]
    log_probabilities = torch.log_softmax(logits, -1)[-len(continuation):]
    return sum(row[token].item() for row, token in zip(log_probabilities, continuation))


def mean_and_error(values):
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def main():
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=257, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5,
                        bos_token_id=END, eos_token_id=END)
    model = GPT2LMHeadModel(config)
    model.save_pretrained(HERE)
    (HERE / "generation_config.json").unlink(missing_ok=True)
    model = model.double().eval()
    (HERE / "questions.jsonl").write_text("".join(json.dumps(q, ensure_ascii=False) + "\n" for q in QUESTIONS))
    likelihoods, right, right_normalized = [], [], []
    for question in QUESTIONS:
        choices = question["choices"]
        answer = question["answer"]
        answer = choices.index(answer) if isinstance(answer, str) else answer
        values = [log_likelihood(model, *encode_pair(question["question"], " " + choice)) for choice in choices]
        normalized = [value / len(choice.encode()) for value, choice in zip(values, choices)]
        likelihoods += values
        right.append(float(values.index(max(values)) == answer))
        right_normalized.append(float(normalized.index(max(normalized)) == answer))
    accuracy, error = mean_and_error(right)
    normalized_accuracy, normalized_error = mean_and_error(right_normalized)
    (HERE / "expected.json").write_text(
        json.dumps(
            {
                "log_likelihoods": likelihoods,
                "accuracy": accuracy,
                "accuracy_error": error,
                "normalized_accuracy": normalized_accuracy,
                "normalized_accuracy_error": normalized_error,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
