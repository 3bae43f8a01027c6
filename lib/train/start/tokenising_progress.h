// How far the text of a source is tokenised, which may take hours at a run's first start: rank 0 shows it on its
// console, the first rank of another host notes it in its log now and then.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "base/clock.h"
#include "telemetry/count_progress.h"
#include "telemetry/log.h"
#include "telemetry/progress.h"

namespace scaletrain {

// For one thread; `console` (null: none) and `log` outlive it.
class TokenisingProgress {
 public:
  TokenisingProgress(std::FILE* console, Log& log) : console_(console), log_(log) {}

  // `all`: of the source with this name, which may be counted again from its beginning.
  void update(const std::string& name, std::uint64_t bytes, std::uint64_t all) {
    if (name != name_ || bytes < bytes_) begin(name);
    bytes_ = bytes;
    if (line_) line_->update(static_cast<std::int64_t>(bytes >> 20), static_cast<std::int64_t>(all >> 20));
    if (bytes >= all) line_.reset();
    constexpr double seconds_between_notes = 60.0;
    if (console_ != nullptr || seconds_since(noted_) < seconds_between_notes) return;
    noted_ = monotonic_now();
    log_.info(fmt::format("{}: {} of {} MiB are tokenised", name, bytes >> 20, all >> 20));
  }

 private:
  void begin(const std::string& name) {
    name_ = name;
    noted_ = monotonic_now();
    line_.reset();
    if (console_ == nullptr) return;
    line_.emplace(console_, CountProgressOptions{.what = "tokenising " + name,
                                                 .unit = "MiB",
                                                 .live = progress_options_for(console_, 0, std::nullopt).live});
  }

  std::FILE* console_;
  Log& log_;
  std::string name_;
  std::uint64_t bytes_ = 0;
  MonotonicTime noted_{};
  std::optional<CountProgress> line_;
};

}  // namespace scaletrain
