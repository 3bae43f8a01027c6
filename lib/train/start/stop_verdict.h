// Of a run that has stopped early and is started again: whether that verdict stands. It is over what the evaluation set
// held then; where its files hold something else now the run goes on.
#pragma once

#include <optional>
#include <string>

#include "config/config.h"
#include "train/early_stop.h"

namespace scaletrain {

// Why the run has ended, for people; nothing: it has not, or goes on under the config `now`. before: that of the
// checkpoint that `state` is of. Opens the set where nothing else has changed, and so reads what is new of its files.
// One that cannot be opened, which training would need, changes no verdict: the text says so.
std::optional<std::string> stop_verdict(const EarlyStopState& state, const Config& before, const Config& now);

}  // namespace scaletrain
