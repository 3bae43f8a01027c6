// The learning rate of each update: a pure function of the update's number, so that a resume cannot shift it.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace scaletrain {

// `update` is the number of the update about to be made, from 1 to total_updates.
//   warm-up:  peak · update / warmup for update <= warmup: never zero, and the peak itself at update = warmup.
//   after it: with s = max(warmup, 1) and x = (update - s) / (total_updates - s), at most 1:
//     cosine    peak · (r + (1 - r) · (1 + cos(πx)) / 2)
//     linear    peak · (r + (1 - r) · (1 - x))
//     constant  peak
//   r = min_ratio, so peak · r is reached at the last update. warmup >= total_updates: warm-up is all there is.
// A config without a warm-up has default_warmup(total_updates).
// Source of the cosine: Loshchilov and Hutter 2017, one period. wsd is a UserError.
double learning_rate(const LrScheduleConfig& config, double peak, std::int64_t update, std::int64_t total_updates);

// The part after the warm-up alone, at x = `progress`, from 0 to 1: for runs that measure their way otherwise than in
// updates.
double decayed_rate(const LrScheduleConfig& config, double peak, double progress);

}  // namespace scaletrain
