#include "telemetry/count_progress.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "base/text.h"
#include "telemetry/live_line.h"

namespace scaletrain {

namespace {

constexpr const char* clear_line = "\r\x1b[K";

}  // namespace

CountProgress::CountProgress(std::FILE* out, CountProgressOptions options)
    : out_(out), options_(std::move(options)), start_(monotonic_now()) {}

CountProgress::~CountProgress() {
  if (options_.live && any_) std::fputs(clear_line, out_);
  std::fflush(out_);
}

void CountProgress::update(std::int64_t done, std::int64_t all) {
  const double elapsed = seconds_since(start_);
  if (options_.live) {
    if (any_ && done < all && seconds_since(last_) < options_.least_interval) return;
  } else if (any_ ? seconds_since(last_) < options_.every : elapsed < options_.first_line) {
    return;
  }
  any_ = true;
  last_ = monotonic_now();
  const double share = all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 1.0;
  const std::string count =
      fmt::format("{}: {} of {} {} ({:.0f} %)", options_.what, grouped_digits(static_cast<std::uint64_t>(done)),
                  grouped_digits(static_cast<std::uint64_t>(all)), options_.unit, 100.0 * share);
  const std::string left =
      done > 0 && done < all ? fmt::format(", {} left", duration_text(elapsed / share - elapsed)) : std::string();
  const std::string text =
      options_.live ? clear_line + fields_that_fit(out_, std::array{count, left}) : count + left + "\n";
  std::fputs(text.c_str(), out_);
  std::fflush(out_);
}

}  // namespace scaletrain
