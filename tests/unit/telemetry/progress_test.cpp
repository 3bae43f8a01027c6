#include "telemetry/progress.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/eventually.h"
#include "support/stream_text.h"
#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

// What the calls print to a stream that is no terminal.
std::string printed(const ProgressOptions& options, const std::function<void(ProgressPrinter&)>& use) {
  return stream_text([&](std::FILE* stream) {
    ProgressPrinter printer(stream, options);
    use(printer);
  });
}

StepRecord timed_step(std::int64_t step, double seconds = 2.0) {
  return {.step = step,
          .tokens = step * 10,
          .loss = 3.25,
          .learning_rate = 0.0005,
          .grad_norm = 1.5,
          .step_seconds = seconds,
          .tokens_per_second = 12345.4,
          .mfu = 0.4237,
          .elapsed_seconds = seconds * static_cast<double>(step)};
}

constexpr const char* clear = "\r\x1b[K";

class PseudoTerminal {
 public:
  PseudoTerminal() : reader_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)) {
    std::array<char, 64> name{};
    REQUIRE(reader_);
    REQUIRE(::grantpt(reader_.get()) == 0);
    REQUIRE(::unlockpt(reader_.get()) == 0);
    REQUIRE(::ptsname_r(reader_.get(), name.data(), name.size()) == 0);
    stream_.reset(std::fopen(name.data(), "w"));
    REQUIRE(stream_);
  }
  std::FILE* stream() const { return stream_.get(); }
  void resize(unsigned short columns) const {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(reader_.get(), TIOCSWINSZ, &size) == 0);
  }
  // What has been written and not been read yet.
  std::string read() const {
    std::array<char, 4096> buffer{};
    const ssize_t n = ::read(reader_.get(), buffer.data(), buffer.size());
    return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
  }

 private:
  FileDescriptor reader_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream_{nullptr, std::fclose};
};

}  // namespace

TEST_CASE("plain lines come at the first, every so many, and the last step") {
  const auto text = printed({.total_steps = 25, .every = 10}, [](ProgressPrinter& printer) {
    for (int step = 1; step <= 25; ++step) printer.step(timed_step(step));
  });
  CHECK(text ==
        "step 1/25  loss 3.2500  lr 0.0005  grad norm 1.5  12,345 tokens/s  42.4 % of matmul peak\n"
        "step 10/25  loss 3.2500  lr 0.0005  grad norm 1.5  12,345 tokens/s  42.4 % of matmul peak  30.0 s left\n"
        "step 20/25  loss 3.2500  lr 0.0005  grad norm 1.5  12,345 tokens/s  42.4 % of matmul peak  10.0 s left\n"
        "step 25/25  loss 3.2500  lr 0.0005  grad norm 1.5  12,345 tokens/s  42.4 % of matmul peak\n");
}

TEST_CASE("without a rhythm of their own plain lines grow rarer, but none is long in coming") {
  const auto printed_steps = [](double interval) {
    const auto text = printed({.total_steps = 1000, .plain_interval = interval}, [](ProgressPrinter& printer) {
      for (int step = 101; step <= 1000; ++step) printer.step(timed_step(step));
    });
    std::vector<int> steps;
    for (std::size_t at = text.find("step "); at != std::string::npos; at = text.find("step ", at + 1))
      steps.push_back(std::stoi(text.substr(at + 5)));
    return steps;
  };
  // The 1st, 2nd, 5th ... that this start makes, and the run's last.
  CHECK(printed_steps(3600) == std::vector<int>{101, 102, 105, 110, 120, 150, 200, 300, 600, 1000});
  CHECK(printed_steps(0).size() == 900);
}

TEST_CASE("the live line tells the best loss and the restarts of all starts, without what a rollback made void") {
  RunSummary before;
  before.add(timed_step(1));
  StepRecord low = timed_step(2);
  low.loss = 1.5;
  before.add(low);
  before.add_restart(2, "worker 17 was killed");
  const auto text = printed({.live = true, .least_interval = 0}, [&](ProgressPrinter& printer) {
    printer.begin(before);
    printer.step(timed_step(3));
    printer.went_back(1);
    printer.step(timed_step(2));
    CHECK(printer.summary().restarts() == 2);
  });
  CHECK(text.find("step 3  loss 3.2500 (best 1.5000)") != std::string::npos);
  CHECK(text.find("1 restart") != std::string::npos);
  CHECK(text.find("step 2  loss 3.2500 (best 3.2500)") != std::string::npos);
  CHECK(text.find("2 restarts") != std::string::npos);
}

TEST_CASE("the live line is renewed in place, gives way to messages and ends with a line end") {
  const auto text = printed({.total_steps = 3, .live = true, .least_interval = 0}, [](ProgressPrinter& printer) {
    printer.message("starting");
    printer.step(timed_step(1));
    printer.step(timed_step(2));
    printer.message("saved");
    printer.finish();
    printer.message("done");
  });
  const std::string first = "step 1/3  loss 3.2500 (best 3.2500)  2s  10 tok  12,345 tok/s  42.4 % of matmul peak";
  const std::string second =
      "step 2/3  loss 3.2500 (best 3.2500)  4s, 2s left  20 tok  12,345 tok/s  42.4 % of matmul peak";
  CHECK(text == "starting\n" + (clear + first) + clear + second + clear + "saved\n" + clear + second + clear + second +
                    "\ndone\n");
}

TEST_CASE("the live line shows as many whole fields as the terminal takes, also after its width has changed") {
  const PseudoTerminal terminal;
  StepRecord record = timed_step(1000);
  record.mfu = 0.326;
  ProgressPrinter printer(terminal.stream(), {.total_steps = 20000, .live = true, .least_interval = 0});
  RunSummary before;
  before.add_restart(900, "worker 17 was killed");
  printer.begin(before);
  printer.step(timed_step(999));
  printer.step(record);
  const auto shown_at = [&](unsigned short columns) {
    terminal.resize(columns);
    terminal.read();
    printer.step(record);
    const std::string text = terminal.read();
    const std::size_t start = text.rfind(clear);
    REQUIRE(start != std::string::npos);
    return text.substr(start + std::string(clear).size());
  };
  const std::string step = "step 1000/20000";
  const std::string loss = step + "  loss 3.2500";
  const std::string left = loss + " (best 3.2500)  33m, 11h left";
  const std::string restarts = left + "  1 restart";
  const std::string tokens = restarts + "  10.0K tok";
  CHECK(shown_at(200) == tokens + "  12,345 tok/s  32.6 % of matmul peak");
  CHECK(shown_at(80) == tokens);
  CHECK(shown_at(79) == restarts);
  CHECK(shown_at(61) == left);
  CHECK(shown_at(30) == loss);
  CHECK(shown_at(static_cast<unsigned short>(loss.size())) == step);  // the last column stays free
  CHECK(shown_at(10) == step.substr(0, 9));
  CHECK(shown_at(94) == tokens + "  12,345 tok/s");
  // A terminal that does not know its width takes all.
  CHECK(shown_at(0).ends_with("of matmul peak"));
}

TEST_CASE("at 80 columns the live line tells the time, the tokens and the restarts of a long run") {
  RunSummary before;
  before.add_restart(900, "worker 17 was killed");
  const auto shown = [&](double step_seconds, double elapsed) {
    const PseudoTerminal terminal;
    terminal.resize(80);
    ProgressPrinter printer(terminal.stream(), {.total_steps = 20000, .live = true, .least_interval = 0});
    printer.begin(before);
    printer.step(timed_step(9999, step_seconds));
    StepRecord record = timed_step(10000, step_seconds);
    record.tokens = 123'456'789;
    record.elapsed_seconds = elapsed;
    printer.step(record);
    printer.finish();
    std::string text;
    CHECK(eventually([&] { return (text += terminal.read()).ends_with("\r\n"); }));
    const std::size_t start = text.rfind(clear);
    REQUIRE(start != std::string::npos);
    return text.substr(start + std::string(clear).size());
  };
  const std::string begin = "step 10000/20000  loss 3.2500 (best 3.2500)  ";
  CHECK(shown(0.001, 9.4) == begin + "9s, 10s left  1 restart  123M tok\r\n");
  CHECK(shown(0.559, 99.4) == begin + "99s, 93m left  1 restart  123M tok\r\n");
  CHECK(shown(1.872, 3600) == begin + "60m, 5h left  1 restart  123M tok\r\n");
  CHECK(shown(36.0, 86400 * 3) == begin + "72h, 4d left  1 restart  123M tok\r\n");
}

TEST_CASE("the live line is not renewed more often than asked, but the last step always shows") {
  const auto text = printed({.total_steps = 1000, .live = true, .least_interval = 3600}, [](ProgressPrinter& printer) {
    for (int step = 1; step <= 1000; ++step) printer.step(timed_step(step));
  });
  CHECK(text.find("step 1/") != std::string::npos);
  CHECK(text.find("step 500/") == std::string::npos);
  CHECK(text.find("step 1000/1000") != std::string::npos);
}

TEST_CASE("colours are marked only when wanted") {
  for (const bool colours : {false, true}) {
    const auto text = printed({.live = true, .colours = colours}, [](ProgressPrinter& p) { p.step(timed_step(1)); });
    CHECK((text.find("\x1b[0m") != std::string::npos) == colours);
  }
}

TEST_CASE("numbers that mean nothing are left out") {
  const auto text = printed({}, [](ProgressPrinter& printer) {
    StepRecord record = timed_step(7);
    record.mfu = 0;
    record.tokens_per_second = std::nan("");
    record.loss = std::nan("");
    printer.step(record);
  });
  CHECK(text == "step 7  loss nan  lr 0.0005  grad norm 1.5\n");
}

TEST_CASE("trap: the time left ignores the first step's warm-up and rare slow steps") {
  TimeLeft left;
  CHECK_FALSE(left.seconds(10));
  left.add(100.0);  // warms up
  CHECK_FALSE(left.seconds(10));
  left.add(2.0);
  CHECK(left.seconds(10) == 20.0);
  for (int i = 0; i < 20; ++i) left.add(i % 5 == 0 ? 50.0 : 2.0);
  CHECK(left.seconds(10) == 20.0);
  left.add(std::nan(""));
  CHECK(left.seconds(10) == 20.0);
  CHECK(left.seconds(-3) == 0.0);
  for (int i = 0; i < 200; ++i) left.add(4.0);  // the pace changed for good
  CHECK(left.seconds(10) == 40.0);
}

TEST_CASE("a file is no terminal") {
  const TempFolder folder;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen((folder / "out").c_str(), "w"), std::fclose);
  const auto options = progress_options_for(file.get(), 100, 5);
  CHECK_FALSE(options.live);
  CHECK_FALSE(options.colours);
  CHECK(options.total_steps == 100);
  CHECK(options.every == 5);
}

TEST_CASE("a console that nobody reads holds nothing up, and what it missed is counted") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(::fdopen(ends[1], "w"), std::fclose);
  const FileDescriptor reader(ends[0]);
  ProgressPrinter printer(out.get(), {.every = 1});
  // Far more than any pipe holds. A write that waits would wait for ever.
  for (int step = 1; step <= 30000; ++step) printer.step(timed_step(step));
  CHECK((::fcntl(ends[1], F_GETFL) & O_NONBLOCK) == 0);  // as it was, for others that write there
  std::vector<char> buffer(1u << 20);
  REQUIRE(::read(reader.get(), buffer.data(), buffer.size()) > 0);
  printer.message("the reader is back");
  const ssize_t n = ::read(reader.get(), buffer.data(), buffer.size());
  REQUIRE(n > 0);
  const std::string shown(buffer.data(), static_cast<std::size_t>(n));
  CHECK(shown.find("lines were not shown") != std::string::npos);
  CHECK(shown.find("the reader is back\n") != std::string::npos);
}
