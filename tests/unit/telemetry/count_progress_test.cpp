#include "telemetry/count_progress.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <functional>
#include <string>

#include "support/stream_text.h"
#include "telemetry/loss_text.h"

using namespace scaletrain;

namespace {

std::string count_output(const CountProgressOptions& options, const std::function<void(CountProgress&)>& use) {
  return stream_text([&](std::FILE* stream) {
    CountProgress progress(stream, options);
    use(progress);
  });
}

void count_to_four(CountProgress& progress) {
  for (const std::int64_t done : {0, 1'000, 2'000, 4'000}) progress.update(done, 4'000);
}

}  // namespace

TEST_CASE("where no terminal is, counted work prints plain lines now and then") {
  const std::string text =
      count_output({.what = "held", .unit = "samples", .first_line = 0.0, .every = 0.0}, count_to_four);
  CHECK(text.find("held: 0 of 4,000 samples (0 %)\n") == 0);
  CHECK(text.find("\nheld: 1,000 of 4,000 samples (25 %), ") != std::string::npos);
  CHECK(text.find(" left\nheld: 4,000 of 4,000 samples (100 %)\n") != std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(count_output({.what = "held", .unit = "samples", .first_line = 0.0, .every = 3600.0}, count_to_four) ==
        "held: 0 of 4,000 samples (0 %)\n");
}

TEST_CASE("counted work that is soon done prints nothing where no terminal is") {
  CHECK(count_output({.what = "held", .unit = "samples", .first_line = 3600.0, .every = 0.0}, count_to_four).empty());
}

TEST_CASE("on a terminal counted work has one line from its beginning on, which is gone at its end") {
  const std::string clear = "\r\x1b[K";
  const std::string text =
      count_output({.what = "held", .unit = "samples", .live = true, .least_interval = 3600.0}, count_to_four);
  CHECK(text == clear + "held: 0 of 4,000 samples (0 %)" + clear + "held: 4,000 of 4,000 samples (100 %)" + clear);
}

TEST_CASE("a loss is spelled out while it is one that a model could have, and in short when it diverges") {
  CHECK(loss_text(3.25) == "3.2500");
  CHECK(loss_text(0.00004) == "0.0000");
  CHECK(loss_text(99999.5) == "99999.5000");
  CHECK(loss_text(2226041832782692352.0) == "2.226e+18");
  CHECK(loss_text(-1e300) == "-1.000e+300");
  CHECK(loss_text(-__builtin_nan("")) == "nan");
  CHECK(loss_text(__builtin_inf()) == "inf");
}
