#!/usr/bin/env python3
"""Learning rates of whole runs (learning_rates.json), as transformers' and PyTorch's schedulers have them.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python tests/golden/make_learning_rates.py

Their step 0 is before the first update; update u is their step u, so that warm-up is never zero and the last update is where they end. What
they do not have (a floor under the inverse root, cycles that grow by a factor that is no integer) is computed from the papers' formulas.
"""

import json
import math
import pathlib

import torch
from transformers import get_constant_schedule_with_warmup, get_cosine_with_min_lr_schedule_with_warmup, \
    get_inverse_sqrt_schedule, get_linear_schedule_with_warmup, get_wsd_schedule

PEAK = 0.75


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)


def rates_of(scheduler, total):
    """Of the steps 1 to total: a LambdaLR's function says them without stepping."""
    return [PEAK * scheduler.lr_lambdas[0](step) for step in range(1, total + 1)]


def linear_warmup(warmup):
    return [PEAK * update / warmup for update in range(1, warmup)]


def wsd(warmup, total, decay, shape, low):
    """Behind its warm-up, which begins at the floor there and at 0 here, as that of every schedule."""
    scheduler = get_wsd_schedule(optimizer(), warmup, decay, num_training_steps=total, decay_type=shape, min_lr_ratio=low)
    return linear_warmup(warmup) + rates_of(scheduler, total)[warmup - 1:]


def restarts(warmup, total, first, factor, low):
    """PyTorch's CosineAnnealingWarmRestarts behind a warm-up, which ends at the peak."""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer(), T_0=first, T_mult=factor, eta_min=PEAK * low)
    rates = linear_warmup(warmup)
    while len(rates) < total:
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def restarts_of_paper(warmup, total, first, factor, low):
    """Loshchilov and Hutter 2017, equation (5), with T_i = first * factor^i."""
    rates = linear_warmup(warmup)
    begin, length = 0.0, float(first)
    for done in range(total - len(rates)):
        while done - begin >= length:
            begin, length = begin + length, length * factor
        rates.append(PEAK * (low + 0.5 * (1 - low) * (1 + math.cos(math.pi * (done - begin) / length))))
    return rates


def main():
    cases = []

    def add(kind, warmup, total, rates, **keys):
        assert len(rates) == total
        cases.append(dict(type=kind, warmup=warmup, total=total, **keys, rates=rates))

    for warmup, total in ((1, 20), (5, 20), (7, 40)):
        add("constant", warmup, total, rates_of(get_constant_schedule_with_warmup(optimizer(), warmup), total), min_ratio=0.0)
        add("linear", warmup, total, rates_of(get_linear_schedule_with_warmup(optimizer(), warmup, total), total), min_ratio=0.0)
        add("cosine", warmup, total, min_ratio=0.1, rates=rates_of(
            get_cosine_with_min_lr_schedule_with_warmup(optimizer(), warmup, total, min_lr_rate=0.1), total))
        inverse = rates_of(get_inverse_sqrt_schedule(optimizer(), warmup, timescale=warmup), total)
        add("inverse_sqrt", warmup, total, inverse, min_ratio=0.0)
        add("inverse_sqrt", warmup, total, [rate if update <= warmup else max(rate, PEAK * 0.6) for update, rate in enumerate(inverse, 1)],
            min_ratio=0.6)
        for shape in ("linear", "cosine", "1-sqrt"):
            for decay, low in ((8, 0.0), (5, 0.1)):
                add("wsd", warmup, total, wsd(warmup, total, decay, shape, low), min_ratio=low, decay_steps=decay, decay_shape=shape)
        # The same length as a share of the run.
        add("wsd", warmup, total, wsd(warmup, total, total // 4, "linear", 0.1), min_ratio=0.1, decay_share=0.25, decay_shape="linear")
        for first, factor, low in ((6, 1, 0.0), (4, 2, 0.1)):
            add("cosine_restarts", warmup, total, restarts(warmup, total, first, factor, low), min_ratio=low, restart_steps=first,
                restart_factor=factor)
        add("cosine_restarts", warmup, total, restarts_of_paper(warmup, total, 5, 1.5, 0.2), min_ratio=0.2, restart_steps=5,
            restart_factor=1.5)
    file = pathlib.Path(__file__).resolve().parent / "learning_rates.json"
    file.write_text("[" + ",\n".join(json.dumps(case) for case in cases) + "]\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
