// The factor S that the loss has in fp16: small gradients, which the type would make zero, are back-propagated S times
// as large, and the update divides by S again (step_scalars.h). A power of two changes no bit of what neither
// underflows nor overflows.
//
// Dynamic scaling as in Micikevicius et al., "Mixed Precision Training" (2018), section 3.2, with the numbers that are
// customary: S begins at 65536, is halved when gradients overflow, which makes the step void, and doubled after 2000
// steps in a row that did not. The overflow is seen in the sum of squares over all ranks, so all of them decide alike.
//
// S stays between 1 and 2^24. A mean loss whose gradients overflow 65504 unscaled is no matter of the scale; and with
// 2^24 even the gradients of the logits of a batch of 2^24 tokens reach 1: more would only bring overflows.
//
// Everything here is pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/config.h"
#include "optim/step_scalars.h"

namespace scaletrain {

inline constexpr double initial_loss_scale = 65536.0;
inline constexpr double least_loss_scale = 1.0;
inline constexpr double most_loss_scale = 16777216.0;
inline constexpr std::int64_t good_steps_to_double = 2000;

// Part of a checkpoint's scalars: a resume goes on with the same scale and count.
struct LossScaleState {
  double scale = initial_loss_scale;
  std::int64_t good_steps = 0;  // in a row, since the scale last changed: below good_steps_to_double
  bool operator==(const LossScaleState&) const = default;
};

// The state that a run begins or goes on with: `before` is the checkpoint's. Nothing where the precision has no dynamic
// scale; the initial one where the checkpoint has none.
std::optional<LossScaleState> continue_loss_scale(const std::optional<LossScaleState>& before,
                                                  const PrecisionConfig& precision);

// The next step's scale: the state's, else the config's; 1 in any type but fp16.
double loss_scale_of(const PrecisionConfig& precision, const std::optional<LossScaleState>& state);

// Whether an overflow is answered by a smaller scale. If not, it is a non-finite gradient like any other.
bool can_fall(const std::optional<LossScaleState>& state);

// The state after a step that was skipped for this reason, or not. A step without tokens says nothing; one whose loss
// is not finite, whose gradients would be so at any scale, ends the row.
LossScaleState after_step(const LossScaleState& before, SkipReason reason);

// For people: "loss scale 65536 (dynamic)".
std::string loss_scale_text(const PrecisionConfig& precision, const std::optional<LossScaleState>& state);

}  // namespace scaletrain
