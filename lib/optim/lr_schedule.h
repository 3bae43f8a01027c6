// The learning rate of each update: a pure function of the update's number, so that a resume cannot shift it.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace scaletrain {

// `update` is the number of the update about to be made, from 1 to total_updates.
//   warm-up:  peak · update / warmup for update <= warmup: never zero, and the peak itself at update = warmup.
//   after it: with s = max(warmup, 1), d = update - s, w = total_updates - s and x = d / w, at most 1:
//     cosine           peak · (r + (1 - r) · (1 + cos(πx)) / 2)
//     linear           peak · (r + (1 - r) · (1 - x))
//     constant         peak
//     inverse_sqrt     peak · max(r, sqrt(s / update))
//     wsd              peak until the last L updates, then peak · (r + (1 - r) · f(y)), y the way through those
//     cosine_restarts  peak · (r + (1 - r) · (1 + cos(πd/n)) / 2), n = restart_steps; after those d begins at 0 again
//                      and n is restart_factor times as long
//   r = min_ratio, so cosine, linear and wsd reach peak · r at the last update. warmup >= total_updates: warm-up is all
//   there is. L is decay_steps or decay_share · total_updates, at most w; f(y) = 1 - y (linear), (1 + cos(πy)) / 2
//   (cosine) or 1 - sqrt(y) (1-sqrt).
// A config without a warm-up has default_warmup(total_updates).
// Sources: Loshchilov and Hutter 2017 (cosine, restarts); Vaswani et al. 2017 (inverse_sqrt, with the warm-up as its
// scale); Hu et al. 2024 (wsd), Hägele et al. 2024 (1-sqrt).
double learning_rate(const LrScheduleConfig& config, double peak, std::int64_t update, std::int64_t total_updates);

// How far a run has come behind its warm-up, in any unit: updates, or samples where a run is measured in those.
struct ScheduleWay {
  double done = 0;    // with the update about to be made
  double whole = 0;   // of the run
  double warmup = 0;  // how long that was
  double update = 1;  // what one update of lengths that are given in steps is
};

// The part after the warm-up alone: 0 <= done <= whole.
double decayed_rate(const LrScheduleConfig& config, double peak, const ScheduleWay& way);

}  // namespace scaletrain
